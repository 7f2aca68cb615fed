"""Recurrent layer: kind, sizes, and the tiling of its columns and sequences in a program."""

from __future__ import annotations

import enum
from dataclasses import dataclass

_WIDEST_TILE, _NARROWEST_TILE = 64, 16
"""Columns of one gate per tile. The narrowest tile fills the widest register of any processor, so that one program
serves all processors."""

_MOST_SUMS = 128
"""Sums of a tile for one sequence: two thirds of the widest register file."""

_MOST_ROWS, _MOST_ROWS_OF_LARGE = 4, 8
"""Sequences per chain, which share each load of a weight."""

_LARGE = 1 << 18
"""Number of state weights per direction that no longer fits the caches of a core."""


class Cell(enum.StrEnum):
    """Kinds of recurrent layers in ONNX."""

    LSTM = "lstm"
    GRU = "gru"
    RNN = "rnn"


GATES = {Cell.LSTM: 4, Cell.GRU: 3, Cell.RNN: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Parameters of a recurrent layer."""

    cell: Cell
    steps: int
    batch: int
    hidden: int
    is_reverse: tuple[bool, ...]
    """For each direction, True if it runs from the last step to the first."""

    activations: tuple[str, ...]
    """ONNX names of the activations; the same for all directions."""

    clip: float | None = None
    """Bound on the magnitude of a gate's value before its activation; None if unbounded."""

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
        """Number of gates per column."""
        return GATES[self.cell]

    @property
    def tile(self) -> int:
        """Number of columns computed together."""
        width = _WIDEST_TILE
        while width > _NARROWEST_TILE and (self.hidden % width or self.gates * width > _MOST_SUMS):
            width //= 2
        return width

    @property
    def padded(self) -> int:
        """Number of columns of the state, padded to whole tiles."""
        return -(-self.hidden // self.tile) * self.tile

    @property
    def rows(self) -> int:
        """Number of sequences per chain."""
        is_large = self.gates * self.hidden * self.padded >= _LARGE
        most = min(self.batch, _MOST_ROWS_OF_LARGE if is_large else _MOST_ROWS)
        return next(rows for rows in range(most, 0, -1) if self.batch % rows == 0)

    @property
    def has_two_products(self) -> bool:
        """True for a GRU with the reset before the product, which needs the whole reset gate first."""
        return self.cell is Cell.GRU and not self.is_linear_before_reset

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """[directions, tiles, hidden, gates, columns of a tile]: the weights of a tile are contiguous."""
        return (self.directions, self.padded // self.tile, self.hidden, self.gates, self.tile)

    @property
    def results(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the outputs: all answers, the last hidden states, and the last cell states of an LSTM."""
        state = (self.directions, self.batch, self.hidden)
        states = 2 if self.cell is Cell.LSTM else 1
        return ((self.steps, self.directions, self.batch, self.hidden), *[state] * states)
