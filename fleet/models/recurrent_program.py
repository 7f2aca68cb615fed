"""Tensor program of a whole recurrent layer: the loop over time, the product with the state, and the gates.

The products with the input are computed before, for all steps at once. A chain is one direction of a few sequences;
chains are independent of each other. Within a step, the columns of the state are computed in tiles, and a tile's gates
follow its product immediately. `fleet.spaces.recurrent` finds the stages by their names.

The array "history" keeps all states of a chain, starting with the initial state. A step therefore only reads states of
earlier steps, and the answers are copied out at the end.

Beyond the end of a short sequence in a batch, the state stays unchanged and the answers are 0. In reverse, the initial
state stays until the last element, so one rule serves both directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fleet.models.recurrent_layer import Cell, Recurrence

if TYPE_CHECKING:
    from tvm.ir import Expr, IRModule
    from tvm.tirx import Buffer, PrimFunc, Var

ATTRIBUTE = "fleet.recurrence"
"""Attribute of the PrimFuncs of this module."""

_OPAQUE = 8
"""TVM's operator pattern that prevents fusion (kOpaque)."""

CHAIN, STEP, PRODUCT, SECOND = "chain", "step", "product", "candidate_product"
"""Names of the blocks around a chain and around a step, and of the products with the state."""
WEIGHTS = 1
"""Index of the parameter with the weights of the state."""


def recurrence_program(layer: Recurrence) -> PrimFunc:
    """Return the unscheduled program of a layer.

    Its parameters are the products with the input, float32 [steps, batch, directions, gates, padded], biases included;
    the weights of the state; candidate bias, peepholes, lengths and initial states if the layer has them; the results.
    """
    from tvm.script.ir_builder import IRBuilder
    from tvm.tirx.script import builder as T  # noqa: N812 - as in TVMScript

    with IRBuilder() as built:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_attr({ATTRIBUTE: 1, "tirx.noalias": True, "op_pattern": _OPAQUE})
            _Writer(T, layer).write()
        return built.get()


def input_scales(mod: IRModule) -> tuple[tuple[int, float], ...]:
    """Return scale factors for random inputs, by index of the argument of a module's "main".

    With weights of variance 1 a recurrent layer is chaotic: 64 steps of 64 columns amplify a difference of 1e-7 to 1.
    """
    function = mod["main"]
    if not function.attrs or ATTRIBUTE not in function.attrs:
        return ()
    *_, hidden, _gates, _columns = (int(size) for size in function.params[WEIGHTS].shape)
    return ((WEIGHTS, 0.5 / math.sqrt(hidden)),)


class _Writer:
    """Writer of the blocks of one layer."""

    def __init__(self, builder: Any, layer: Recurrence) -> None:
        self.t = builder
        self.layer = layer
        state = (layer.directions, layer.batch, layer.hidden)
        wanted: list[tuple[str, tuple[int, ...], bool]] = [
            ("given", (layer.steps, layer.batch, layer.directions, layer.gates, layer.padded), True),
            ("weights", layer.weights_shape, True),
            ("bias", (layer.directions, layer.padded), layer.has_candidate_bias),
            ("peepholes", (layer.directions, 3, layer.padded), layer.has_peepholes),
            ("lengths", (layer.batch,), layer.has_lengths),
            ("initial_hidden", state, layer.has_initial_hidden),
            ("initial_cell", state, layer.has_initial_cell),
            *zip(("answers", "last_hidden", "last_cell"), layer.results, [True] * 3, strict=False),
        ]
        self.given: dict[str, Buffer] = {
            name: builder.arg(name, builder.buffer(shape, "int32" if name == "lengths" else "float32"))
            for name, shape, is_there in wanted
            if is_there
        }

    def write(self) -> None:
        """Write the blocks of all chains."""
        t, layer = self.t, self.layer
        with t.grid(layer.directions, layer.batch // layer.rows) as (direction, part), t.sblock(CHAIN):
            d = t.axis.spatial(layer.directions, direction)
            first = t.axis.spatial(layer.batch // layer.rows, part)
            self._chain(d, first * layer.rows)

    def _chain(self, d: Var, first: Expr) -> None:
        t, layer = self.t, self.layer
        history = self.buffer("history", (layer.steps + 1, layer.rows, layer.padded))
        cells = self.buffer("cells", (layer.rows, layer.padded)) if layer.cell is Cell.LSTM else None
        state = (layer.rows, layer.padded)
        self.block("begin_hidden", state, lambda r, j: (history, (0, r, j), self._initial("hidden", d, first + r, j)))
        if cells is not None:
            self.block("begin_cell", state, lambda r, j: (cells, (r, j), self._initial("cell", d, first + r, j)))
        with t.serial(0, layer.steps) as step, t.sblock(STEP):
            s = t.axis.opaque(layer.steps, step)
            _Step(self, d, first, s, history, cells).write()
        self._finish(d, first, history, cells)

    def _finish(self, d: Var, first: Expr, history: Buffer, cells: Buffer | None) -> None:
        t, layer, given = self.t, self.layer, self.given

        def answer(s: Expr, r: Expr, j: Expr) -> tuple[Buffer, Sequence[Expr], Expr]:
            time, b = self.time(d, s), first + r
            found = history[s + 1, r, j]
            shown = t.Select(time < given["lengths"][b], found, t.float32(0)) if layer.has_lengths else found
            return given["answers"], (time, d, b, j), shown

        own = (layer.rows, layer.hidden)
        self.block("answer", (layer.steps, *own), answer)
        self.block(
            "last_hidden", own, lambda r, j: (given["last_hidden"], (d, first + r, j), history[layer.steps, r, j])
        )
        if cells is not None:
            self.block("last_cell", own, lambda r, j: (given["last_cell"], (d, first + r, j), cells[r, j]))

    def _initial(self, which: str, d: Expr, b: Expr, j: Expr) -> Expr:
        t, layer = self.t, self.layer
        found = self.given.get(f"initial_{which}")
        if found is None:
            return t.float32(0)
        if layer.padded == layer.hidden:
            return found[d, b, j]
        return t.if_then_else(j < layer.hidden, found[d, b, j], t.float32(0))

    def time(self, d: Expr, s: Expr) -> Expr:
        """Return the time index of a direction's step."""
        last = self.layer.steps - 1
        if len(set(self.layer.is_reverse)) == 1:
            return last - s if self.layer.is_reverse[0] else s
        return s + d * (last - 2 * s)

    def buffer(self, name: str, shape: Sequence[int]) -> Buffer:
        """Allocate an array in the current block."""
        from tvm.script.ir_builder import IRBuilder

        return IRBuilder.name(name, self.t.sblock_alloc_buffer(shape, "float32", layout=None))

    def block(
        self,
        name: str,
        extents: Sequence[int],
        store: Callable[..., tuple[Buffer, Sequence[Expr | int], Expr]],
        tile: Var | None = None,
    ) -> None:
        """Write loops around a block that stores one number.

        Args:
            tile: outer loop that becomes the block's first axis, or None.
        """
        t, layer = self.t, self.layer
        with t.grid(*extents) as loops, t.sblock(name):
            axes = [] if tile is None else [t.axis.spatial(layer.padded // layer.tile, tile)]
            axes += [t.axis.spatial(size, loop) for size, loop in zip(extents, loops, strict=True)]
            buffer, indices, value = store(*axes)
            t.buffer_store(buffer, value, list(indices))


class _Step:
    """Writer of one step of a chain."""

    def __init__(self, writer: _Writer, d: Var, first: Expr, s: Var, history: Buffer, cells: Buffer | None) -> None:
        self._writer = writer
        self._t = writer.t
        self._layer = layer = writer.layer
        self._given = writer.given
        self._d, self._first, self._s = d, first, s
        self._time = writer.time(d, s)
        self._history, self._cells = history, cells
        self._tiles = layer.padded // layer.tile
        self._tiled = (layer.rows, self._tiles, layer.tile)
        gates = 2 if layer.has_two_products else layer.gates
        self._products = self._buffer("products", (layer.rows, self._tiles, gates, layer.tile))
        self._new = self._buffer("new_hidden", self._tiled)

    def write(self) -> None:
        """Write the step of the layer's kind."""
        if self._cells is not None:
            self._lstm(self._cells)
        elif self._layer.cell is Cell.GRU:
            self._gru()
        else:
            self._rnn()

    def _lstm(self, cells: Buffer) -> None:
        layer = self._layer
        new_cell = self._buffer("new_cell", self._tiled)

        def cell(n: Expr, r: Expr, lane: Expr) -> Expr:
            old = cells[r, self._column(n, lane)]
            kept_in = self._activate(0, self._peep(self._gate(0, n, r, lane), 0, old, n, lane))
            kept = (
                self._t.float32(1) - kept_in
                if layer.couples_gates
                else self._activate(0, self._peep(self._gate(2, n, r, lane), 2, old, n, lane))
            )
            added = kept_in * self._activate(1, self._gate(3, n, r, lane))
            return self._hold(r, kept * old + added, old)

        def hidden(n: Expr, r: Expr, lane: Expr) -> Expr:
            shown = self._activate(0, self._peep(self._gate(1, n, r, lane), 1, new_cell[r, n, lane], n, lane))
            # Like ONNX Runtime, clip the gates but not the cell, although an activation reads it, too.
            return shown * self._function(layer.activations[2], new_cell[r, n, lane])

        with self._t.serial(0, self._tiles) as tile:
            self._product(PRODUCT, tile, self._products, self._history, lambda r, k: (self._s, r, k))
            self._element("cell", tile, new_cell, cell)
            self._element(
                "hidden", tile, self._new, lambda n, r, lane: self._hold(r, hidden(n, r, lane), self._old(n, r, lane))
            )
            self._keep("keep_cell", tile, new_cell, cells, ())
            self._keep("keep_hidden", tile, self._new, self._history, (self._s + 1,))

    def _rnn(self) -> None:
        def hidden(n: Expr, r: Expr, lane: Expr) -> Expr:
            return self._hold(r, self._activate(0, self._gate(0, n, r, lane)), self._old(n, r, lane))

        with self._t.serial(0, self._tiles) as tile:
            self._product(PRODUCT, tile, self._products, self._history, lambda r, k: (self._s, r, k))
            self._element("hidden", tile, self._new, hidden)
            self._keep("keep_hidden", tile, self._new, self._history, (self._s + 1,))

    def _gru(self) -> None:
        layer = self._layer
        candidates, updates = self._buffer("candidates", self._tiled), self._buffer("updates", self._tiled)

        def reset(n: Expr, r: Expr, lane: Expr) -> Expr:
            return self._activate(0, self._gate(1, n, r, lane))

        def before(n: Expr, r: Expr, lane: Expr) -> Expr:
            product = self._products[r, n, 2, lane]
            if layer.has_candidate_bias:
                product = product + self._given["bias"][self._d, self._column(n, lane)]
            return self._activate(1, self._input(2, n, r, lane) + reset(n, r, lane) * product)

        def after(n: Expr, r: Expr, lane: Expr) -> Expr:
            return self._activate(1, self._input(2, n, r, lane) + second[r, n, 0, lane])

        def hidden(n: Expr, r: Expr, lane: Expr) -> Expr:
            # equals (1 - z) * candidate + z * hidden, with one multiplication less
            found, old = candidates[r, n, lane], self._old(n, r, lane)
            return self._hold(r, found + updates[r, n, lane] * (old - found), old)

        with self._t.serial(0, self._tiles) as tile:
            self._product(PRODUCT, tile, self._products, self._history, lambda r, k: (self._s, r, k))
            self._element("update", tile, updates, lambda n, r, lane: self._activate(0, self._gate(0, n, r, lane)))
            if layer.has_two_products:
                shown = self._buffer("shown", (layer.rows, layer.padded))
                kept = self._buffer("reset_hidden", self._tiled)
                self._element("reset", tile, kept, lambda n, r, lane: reset(n, r, lane) * self._old(n, r, lane))
                self._keep("keep_reset", tile, kept, shown, ())
            else:
                self._gru_end(tile, before, candidates, hidden)
        if layer.has_two_products:
            second = self._buffer("candidate_products", (layer.rows, self._tiles, 1, layer.tile))
            with self._t.serial(0, self._tiles) as tile:
                self._product(SECOND, tile, second, shown, lambda r, k: (r, k))
                self._gru_end(tile, after, candidates, hidden)

    def _gru_end(
        self, tile: Var, candidate: Callable[..., Expr], candidates: Buffer, hidden: Callable[..., Expr]
    ) -> None:
        self._element("candidate", tile, candidates, candidate)
        self._element("hidden", tile, self._new, hidden)
        self._keep("keep_hidden", tile, self._new, self._history, (self._s + 1,))

    def _product(
        self, name: str, tile: Var, to: Buffer, state: Buffer, at: Callable[[Expr, Expr], Sequence[Expr]]
    ) -> None:
        """Write the product of a state with the weights of some gates; the second product uses the last gates."""
        t, layer = self._t, self._layer
        gates = int(to.shape[2])
        begin = layer.gates - gates if name == SECOND else 0
        with t.grid(layer.rows, gates, layer.tile, layer.hidden) as (row, gate, column, source), t.sblock(name):
            n = t.axis.spatial(self._tiles, tile)
            r = t.axis.spatial(layer.rows, row)
            g = t.axis.spatial(gates, gate)
            lane = t.axis.spatial(layer.tile, column)
            k = t.axis.reduce(layer.hidden, source)
            with t.init():
                t.buffer_store(to, t.float32(0), [r, n, g, lane])
            weight = self._given["weights"][self._d, n, k, g + begin, lane]
            t.buffer_store(to, to[r, n, g, lane] + state[tuple(at(r, k))] * weight, [r, n, g, lane])

    def _element(self, name: str, tile: Var, to: Buffer, value: Callable[[Expr, Expr, Expr], Expr]) -> None:
        self._writer.block(
            name, (self._layer.rows, self._layer.tile), lambda n, r, lane: (to, (r, n, lane), value(n, r, lane)), tile
        )

    def _keep(self, name: str, tile: Var, new: Buffer, to: Buffer, place: tuple[Expr, ...]) -> None:
        """Copy a tile to the array that the next step reads: no stage reads and writes the same array."""
        self._writer.block(
            name,
            (self._layer.rows, self._layer.tile),
            lambda n, r, lane: (to, (*place, r, self._column(n, lane)), new[r, n, lane]),
            tile,
        )

    def _buffer(self, name: str, shape: Sequence[int]) -> Buffer:
        return self._writer.buffer(name, shape)

    def _column(self, n: Expr, lane: Expr) -> Expr:
        return n * self._layer.tile + lane

    def _old(self, n: Expr, r: Expr, lane: Expr) -> Expr:
        return self._history[self._s, r, self._column(n, lane)]

    def _input(self, gate: int, n: Expr, r: Expr, lane: Expr) -> Expr:
        return self._given["given"][self._time, self._first + r, self._d, gate, self._column(n, lane)]

    def _gate(self, gate: int, n: Expr, r: Expr, lane: Expr) -> Expr:
        """Return the value of a gate before its activation."""
        return self._input(gate, n, r, lane) + self._products[r, n, gate, lane]

    def _peep(self, gate: Expr, index: int, seen: Expr, n: Expr, lane: Expr) -> Expr:
        if not self._layer.has_peepholes:
            return gate
        return gate + self._given["peepholes"][self._d, index, self._column(n, lane)] * seen

    def _hold(self, r: Expr, new: Expr, old: Expr) -> Expr:
        """Return the new state, or the old one beyond the end of a sequence."""
        if not self._layer.has_lengths:
            return new
        return self._t.Select(self._time < self._given["lengths"][self._first + r], new, old)

    def _activate(self, index: int, value: Expr) -> Expr:
        """Apply an activation of the layer, given by its index."""
        clip = self._layer.clip
        if clip is not None:
            value = self._t.max(self._t.min(value, self._t.float32(clip)), self._t.float32(-clip))
        return self._function(self._layer.activations[index], value)

    def _function(self, name: str, x: Expr) -> Expr:
        return ACTIVATIONS[name](self._t, x)


def _softplus(t: Any, x: Expr) -> Expr:
    return t.max(x, t.float32(0)) + t.log(t.float32(1) + t.exp(t.float32(0) - t.abs(x)))


ACTIVATIONS: dict[str, Callable[[Any, Expr], Expr]] = {
    "Elu": lambda t, x: t.Select(x < t.float32(0), t.exp(x) - t.float32(1), x),
    "HardSigmoid": lambda t, x: t.max(t.min(x * t.float32(0.2) + t.float32(0.5), t.float32(1)), t.float32(0)),
    "LeakyRelu": lambda t, x: t.Select(x < t.float32(0), x * t.float32(0.01), x),
    "Relu": lambda t, x: t.max(x, t.float32(0)),
    "Sigmoid": lambda t, x: t.sigmoid(x),
    "Softplus": _softplus,
    "Softsign": lambda t, x: x / (t.float32(1) + t.abs(x)),
    "Tanh": lambda t, x: t.tanh(x),
}
"""Activations by ONNX name, with ONNX's default parameters."""
