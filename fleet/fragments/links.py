"""Rules of operators: axes of operands and results that have the same size, or sizes that follow from others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.fragments.axes import LinkedFragment, Shapes
from fleet.fragments.fragment import Call, Fragment, Operand
from fleet.fragments.operators import CONVOLUTIONS, ELEMENTWISE, NORMS, POOLS, SOFTMAX, STATISTICS
from fleet.fragments.relations import Groups, Reshaped, Window, numbers, regroup


def linked(fragment: Fragment, shapes: Shapes) -> LinkedFragment:
    """Return a fragment with the links between its axes.

    Args:
        shapes: of all tensors, as TVM infers them.
    """
    found = LinkedFragment(fragment=fragment, shapes=shapes, variable=variable_tensors(fragment, shapes))
    for number, call in enumerate(fragment.calls):
        site = Site(number=number, call=call, linked=found)
        rule = _RULES.get(call.operator)
        if rule is not None and all(name in shapes for name in site.operands) and site.operands and site.results:
            rule(site)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A call, with the axes to link."""

    number: int
    call: Call
    linked: LinkedFragment

    @property
    def operands(self) -> list[str]:
        """Names of the tensors that it reads, in order."""
        return list(tensors(self.call.operands))

    @property
    def results(self) -> list[str]:
        """Names of its results."""
        return results_of(self.number, self.linked.shapes)

    def axes(self, name: str) -> range:
        """Return the numbers of a tensor's axes."""
        return range(len(self.linked.shapes[name]))

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Return an attribute of whole numbers."""
        return numbers(self.call.attributes.get(attribute))

    def counted(self, attribute: str, name: str) -> list[int]:
        """Return an attribute of axes of a tensor, each counted from the first."""
        rank = len(self.linked.shapes[name])
        return [axis % rank for axis in self.numbers(attribute) if rank]

    def layout(self, attribute: str, default: str) -> str:
        """Return a layout, one letter per axis; empty for layouts in blocks."""
        text = str(self.call.attributes.get(attribute) or default)
        return text if text.isalpha() else ""


def tensors(operands: Sequence[Operand]) -> list[str]:
    """Return the names of tensors among operands, also those in tuples."""
    found: list[str] = []
    for operand in operands:
        if isinstance(operand, str):
            found.append(operand)
        elif isinstance(operand, tuple):
            found += tensors(operand)
    return found


def results_of(number: int, shapes: Shapes) -> list[str]:
    """Return the names of a call's results."""
    items = itertools.takewhile(shapes.__contains__, (f"c{number}.{item}" for item in itertools.count()))
    return [f"c{number}"] if f"c{number}" in shapes else list(items)


def variable_tensors(fragment: Fragment, shapes: Shapes) -> frozenset[str]:
    """Return the tensors that depend on an input of a fragment."""
    found = {f"i{n}" for n in range(len(fragment.inputs))}
    for number, call in enumerate(fragment.calls):
        if not found.isdisjoint(tensors(call.operands)):
            found.update(results_of(number, shapes))
    return frozenset(found)


def _convolution(site: Site) -> None:
    data, weight, result = *site.operands[:2], site.results[0]
    is_transposed = site.call.operator.endswith("_transpose")
    dimensions = len(site.axes(result)) - 2
    spatial = "DHW"[-dimensions:]
    layout = site.layout("data_layout", f"NC{spatial}")
    made = site.layout("out_layout", layout) or layout
    kernel = site.layout("kernel_layout", f"{'IO' if is_transposed else 'OI'}{spatial}")
    if not (set(layout) == set(made) == {"N", "C", *spatial} and set(kernel) == {"O", "I", *spatial}):
        return
    link, is_grouped = site.linked, site.call.attributes.get("groups") != 1
    link.join((data, layout.index("N")), (result, made.index("N")))
    if is_transposed:
        if not is_grouped:
            link.join((data, layout.index("C")), (weight, kernel.index("I")))
            link.join((weight, kernel.index("O")), (result, made.index("C")))
        return
    link.join((weight, kernel.index("O")), (result, made.index("C")))
    channels = Groups(
        call=site.number,
        source=(data, layout.index("C")),
        result=(result, made.index("C")),
        columns=(weight, kernel.index("I")),
    )
    link.relations.append(channels)
    for dimension, letter in enumerate(spatial):
        window = Window(
            call=site.number,
            source=(data, layout.index(letter)),
            result=(result, made.index(letter)),
            kernel=(weight, kernel.index(letter)),
            dimension=dimension,
            dimensions=dimensions,
        )
        _add_window(site, window)


def _pool(site: Site) -> None:
    (data, *_), result = site.operands, site.results[0]
    dimensions = len(site.axes(result)) - 2
    layout = site.layout("layout", "NC" + "DHW"[-dimensions:])
    if len(layout) != dimensions + 2 or site.layout("out_layout", layout) != layout:
        return
    for letter in "NC":
        site.linked.join((data, layout.index(letter)), (result, layout.index(letter)))
    if "adaptive" in site.call.operator:
        return
    for dimension, letter in enumerate("DHW"[-dimensions:]):
        axis = layout.index(letter)
        window = Window(
            call=site.number,
            source=(data, axis),
            result=(result, axis),
            kernel=None,
            dimension=dimension,
            dimensions=dimensions,
        )
        _add_window(site, window)


def _add_window(site: Site, window: Window) -> None:
    lengths = [len(site.numbers(name)) for name in ("strides", "padding", "dilation")]
    if lengths == [window.dimensions, 2 * window.dimensions, window.dimensions]:
        site.linked.relations.append(window)


def _product(site: Site) -> None:
    left, right, result = *site.operands[:2], site.results[0]
    one, other, made = (len(site.axes(name)) for name in (left, right, result))
    link = site.linked
    link.join((left, one - 1), (right, max(0, other - 2)))
    if one > 1 and other > 1:
        link.join((left, one - 2), (result, made - 2))
        link.join((right, other - 1), (result, made - 1))
        _join_from_right(site, left, result, skipped=2)
        _join_from_right(site, right, result, skipped=2)


def _einsum(site: Site) -> None:
    subscripts = str(site.call.attributes.get("subscripts", "")).replace(" ", "")
    terms, _, made = subscripts.partition("->")
    places: dict[str, tuple[str, int]] = {}
    for term, name in zip([*terms.split(","), made], [*site.operands, site.results[0]], strict=False):
        if len(term) != len(site.axes(name)):
            return
        for axis, letter in enumerate(term):
            site.linked.join(places.setdefault(letter, (name, axis)), (name, axis))


def _attention(site: Site) -> None:
    query, key, value, *bias = site.operands
    result, link = site.results[0], site.linked
    link.join_all(query, (0, 1, 2), result, (0, 1, 2))
    link.join_all(query, (0, 2, 3), key, (0, 2, 3))
    link.join_all(key, (0, 1, 2), value, (0, 1, 2))
    link.join((value, 3), (result, 3))
    if bias and len(site.axes(bias[0])) == 4:
        link.join_all(query, (0, 2, 1), bias[0], (0, 1, 2))
        link.join((key, 1), (bias[0], 3))


def _elementwise(site: Site) -> None:
    for name in site.operands:
        _join_from_right(site, name, site.results[0])


def _along(attribute: str) -> Callable[[Site], None]:
    """Return the rule for results of the first operand's shape, with vectors along some of its axes."""

    def rule(site: Site) -> None:
        (data, *vectors), link = site.operands, site.linked
        link.join_all(data, site.axes(data), site.results[0], site.axes(data))
        axes = site.counted(attribute, data)
        for vector in (*vectors, *site.results[1:]):
            if len(site.axes(vector)) == len(axes):
                link.join_all(vector, site.axes(vector), data, axes)

    return rule


def _join_from_right(site: Site, name: str, result: str, *, skipped: int = 0) -> None:
    """Link the axes of a broadcast. Constants of one row, such as biases, stay of one row."""
    rank, made = len(site.axes(name)), len(site.axes(result))
    for axis in range(rank - skipped):
        if site.linked.size((name, axis)) != 1 or name in site.linked.variable:
            site.linked.join((name, axis), (result, made - rank + axis))


def _statistic(site: Site) -> None:
    data, result = site.operands[0], site.results[0]
    reduced = site.counted("axis", data) or list(site.axes(data))
    kept = [axis for axis in site.axes(data) if axis not in reduced]
    made = kept if site.call.attributes.get("keepdims") else range(len(kept))
    site.linked.join_all(data, kept, result, list(made))


def _permute(site: Site) -> None:
    data = site.operands[0]
    axes = site.counted("axes", data) or list(reversed(site.axes(data)))
    site.linked.join_all(data, axes, site.results[0], site.axes(data))


def _reshape(site: Site) -> None:
    data, result, link = site.operands[0], site.results[0], site.linked
    for axes, others in regroup(link.shapes[data], link.shapes[result]):
        wide = [axis for axis in axes if link.size((data, axis)) != 1]
        made = [axis for axis in others if link.size((result, axis)) != 1]
        if len(axes) == len(others) == 1:
            link.join((data, axes[0]), (result, others[0]))
        elif len(wide) == len(made) == 1 and data not in link.variable:
            link.join((data, wide[0]), (result, made[0]))
        else:
            sources = tuple((data, axis) for axis in axes)
            link.relations.append(Reshaped(sources=sources, results=tuple((result, axis) for axis in others)))


def _expand(site: Site) -> None:
    data, result = site.operands[0], site.results[0]
    new = site.counted("axis", result)
    site.linked.join_all(data, site.axes(data), result, [axis for axis in site.axes(result) if axis not in new])


def _squeeze(site: Site) -> None:
    data, result, shapes = site.operands[0], site.results[0], site.linked.shapes
    gone = site.counted("axis", data) or [axis for axis in site.axes(data) if shapes[data][axis] == 1]
    site.linked.join_all(data, [axis for axis in site.axes(data) if axis not in gone], result, site.axes(result))


def _beside(site: Site) -> None:
    """Link the axes of concat and split, but for the one along which tensors lie side by side."""
    first = site.operands[0]
    along = site.counted("axis", first)
    for name in (*site.operands[1:], *site.results):
        axes = [axis for axis in site.axes(name) if axis not in along]
        site.linked.join_all(first, axes, name, axes)


def _padded(site: Site) -> None:
    data, result, width = site.operands[0], site.results[0], site.numbers("pad_width")
    same = [axis for axis in site.axes(data) if not any(width[2 * axis : 2 * axis + 2])]
    site.linked.join_all(data, same, result, same)


_RULES: dict[str, Callable[[Site], None]] = {
    **dict.fromkeys(ELEMENTWISE | {"broadcast_to", "tril", "triu", "cumsum"}, _elementwise),
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(SOFTMAX, _elementwise),
    **dict.fromkeys(STATISTICS | {"argmax", "argmin"}, _statistic),
    **dict.fromkeys(NORMS, _along("channel_axis")),
    "nn.layer_norm": _along("axes"),
    "nn.rms_norm": _along("axes"),
    "nn.batch_norm": _along("axis"),
    "nn.prelu": _along("axis"),
    "quantize": _along("axis"),
    "dequantize": _along("axis"),
    "matmul": _product,
    "einsum": _einsum,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "permute_dims": _permute,
    "reshape": _reshape,
    "flatten": _reshape,
    "nn.batch_flatten": _reshape,
    "expand_dims": _expand,
    "squeeze": _squeeze,
    "concat": _beside,
    "split": _beside,
    "nn.pad": _padded,
}
