"""One recurrent layer: its kind, its sizes, and how its columns and sequences are grouped for a program."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_WIDEST_TILE, _NARROWEST_TILE = 64, 16
"""Columns of one gate. The narrowest is the widest register of any processor, so that the program is the same for all.
"""

_MOST_SUMS = 128
"""Of a tile, for one sequence: two thirds of the widest registers."""

_MOST_ROWS, _MOST_ROWS_OF_LARGE = 4, 8
"""Sequences of a chain: as many read each weight once."""

_LARGE = 1 << 18
"""Weights of the state, of one direction, from which on the caches of a core do not hold them."""


class Cell(enum.StrEnum):
    """The recurrent layers of ONNX."""

    LSTM = "lstm"
    GRU = "gru"
    RNN = "rnn"


GATES = {Cell.LSTM: 4, Cell.GRU: 3, Cell.RNN: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """One recurrent layer."""

    cell: Cell
    steps: int
    batch: int
    hidden: int
    is_reverse: tuple[bool, ...]
    """Of each direction: whether it runs from the last step to the first."""

    activations: tuple[str, ...]
    """Names in ONNX; the same for all directions."""

    clip: float | None = None
    """Largest magnitude of what an activation of a gate gets."""

    is_linear_before_reset: bool = False
    """GRU: the reset gate applies to the product with the state, not to the state."""

    couples_gates: bool = False
    """LSTM: the forget gate is 1 - the input gate."""

    has_candidate_bias: bool = False
    """GRU, linear before reset: an input [directions, padded], added before the reset gate applies."""

    has_peepholes: bool = False
    """LSTM: an input [directions, 3, padded], of input, output and forget gate."""

    has_lengths: bool = False
    """An int32 input [batch]."""

    has_initial_hidden: bool = False
    has_initial_cell: bool = False
    """Inputs [directions, batch, hidden]; else the states begin with 0."""

    @property
    def directions(self) -> int:
        """Number of directions."""
        return len(self.is_reverse)

    @property
    def gates(self) -> int:
        """Numbers that a column gets from the products."""
        return GATES[self.cell]

    @property
    def tile(self) -> int:
        """Columns that are computed together."""
        width = _WIDEST_TILE
        while width > _NARROWEST_TILE and (self.hidden % width or self.gates * width > _MOST_SUMS):
            width //= 2
        return width

    @property
    def padded(self) -> int:
        """Columns of the state, in whole tiles."""
        return -(-self.hidden // self.tile) * self.tile

    @property
    def rows(self) -> int:
        """Sequences of a chain."""
        is_large = self.gates * self.hidden * self.padded >= _LARGE
        most = min(self.batch, _MOST_ROWS_OF_LARGE if is_large else _MOST_ROWS)
        return next(rows for rows in range(most, 0, -1) if self.batch % rows == 0)

    @property
    def has_two_products(self) -> bool:
        """GRU, reset before the product: it needs all of the reset gate first."""
        return self.cell is Cell.GRU and not self.is_linear_before_reset

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """[directions, tiles, hidden, gates, columns of a tile]: a tile's weights lie together."""
        return (self.directions, self.padded // self.tile, self.hidden, self.gates, self.tile)

    @property
    def results(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the outputs: all answers, the last hidden states, and those of an LSTM's cells."""
        state = (self.directions, self.batch, self.hidden)
        states = 2 if self.cell is Cell.LSTM else 1
        return ((self.steps, self.directions, self.batch, self.hidden), *[state] * states)
