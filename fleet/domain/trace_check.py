"""Allowlist for serialized schedules: a trace is code, so only known instructions and annotations are replayed.

Instructions and annotation keys are those of our own spaces and of MetaSchedule's rules. Values are numbers, names of
registered tensor intrinsics, and a few words. An annotation such as `pragma_import_llvm` could inject LLVM IR into the
built library.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fleet.domain.program_check import INDEX_MAP_TYPES, check_nodes
from fleet.domain.trace_text import USUAL_DECISIONS, divide, remembered
from fleet.errors import InvalidRequest

MOST_TRACE_BYTES = 1024 * 1024
"""Traces of generated models reach 40 kB."""

INSTRUCTIONS = frozenset(
    {"Blockize", "ComputeAt", "ComputeInline", "DecomposePadding", "DecomposeReduction", "EnterPostproc", "Fuse"}
    | {"AddUnitLoop", "GetChildBlocks", "GetConsumers", "GetLoops", "GetOutputBlocks", "GetProducers", "Merge"}
    | {"PadEinsum", "Parallel", "RFactor", "Reorder", "ReorderBlockIterVar", "ReverseComputeAt", "StorageAlign"}
    | {"ReverseComputeInline", "SampleCategorical", "SampleComputeLocation", "SamplePartitionedTile", "Unroll"}
    | {"SamplePerfectTile", "Split", "Vectorize"}
    | {"Annotate", "Bind", "CacheRead", "CacheWrite", "GetSBlock", "ReIndex", "SetScope", "Tensorize"}
    | {"TransformBlockLayout", "TransformLayout", "Unannotate"}
)

ANNOTATIONS = frozenset(
    {f"meta_schedule.{name}" for name in ("cooperative_fetch", "layout_rewrite_preproc", "parallel", "vectorize")}
    | {f"meta_schedule.{name}" for name in ("random_compute_producer", "unroll_explicit", "unroll_implicit")}
    | {f"meta_schedule.thread_extent_{name}_inclusive" for name in ("low", "high")}
    | {f"software_pipeline_{name}" for name in ("async_stages", "order", "stage")}
    | {"pragma_auto_unroll_max_step", "pragma_loop_partition_hint", "pragma_unroll_explicit"}
    | {"pragma_parallel_barrier_when_finish", "pragma_parallel_launch_point"}
    | {"double_buffer_scope", "fleet.left_to_compiler", "schedule_rule", "warp_execution"}
    | {"meta_schedule.auto_tensorize", "meta_schedule.auto_tensorize_init", "meta_schedule.tiling_structure"}
)
"""Annotation keys. Their values are numbers, except for the keys of `_WORDS`."""

_INTRINSIC = r"(?:[A-Za-z][\w.]{0,99})?"
_WORDS = {
    "meta_schedule.auto_tensorize": re.compile(f'"{_INTRINSIC}"'),
    "meta_schedule.auto_tensorize_init": re.compile(f'"{_INTRINSIC}"'),
    "meta_schedule.tiling_structure": re.compile('"[SR]{1,32}"'),
}
"""Allowed text values by annotation key, in quotation marks as TVM writes a text."""

_SCOPE = re.compile(r"global|shared(?:\.dyn)?|local|warp|wmma\.(?:matrix_a|matrix_b|accumulator)|m16n8k8\.matrix[ABC]")
_ATTRIBUTES = {
    "Annotate": re.compile("|".join(map(re.escape, sorted(ANNOTATIONS)))),
    "Unannotate": re.compile("|".join(map(re.escape, sorted(ANNOTATIONS)))),
    "Bind": re.compile(r"(?:blockIdx|threadIdx|vthread)(?:\.[xyz])?"),
    "CacheRead": _SCOPE,
    "CacheWrite": _SCOPE,
    "SetScope": _SCOPE,
    "GetSBlock": re.compile(r".{0,1000}"),
    "ReIndex": re.compile(r"read|write"),
    "Tensorize": re.compile(_INTRINSIC),
}
"""Allowed text attributes by instruction; other instructions have none."""

_MAPS = {"TransformLayout", "TransformBlockLayout"}
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,31}")
_MOST_INTEGER = 2**63
_DEEPEST = 4
_NO_TRACE = "its trace is not JSON as MetaSchedule writes it"
_decoder = json.JSONDecoder()


def check_trace(trace_json: str) -> None:
    """Refuse a schedule unless all its steps and their values are on the allowlist.

    Raises:
        InvalidRequest: the message names the instruction, and the key or value that is not allowed.
    """
    _check_size(len(trace_json))
    text = trace_json.strip()
    if check_trace_at(text, 0) != len(text):
        raise InvalidRequest(_NO_TRACE)


def check_trace_at(text: str, start: int) -> int:
    """Refuse a schedule as `check_trace` does, and return the position after it.

    Args:
        start: position of its JSON in the text.
    """
    end = _end_of_known(text, start)
    if end is not None:
        return end
    try:
        trace, end = _decoder.raw_decode(text, start)
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(_NO_TRACE) from error
    _check_size(end - start)
    check_steps(trace)
    return end


def check_steps(trace: Any) -> None:
    """Refuse a parsed schedule as `check_trace` does."""
    try:
        instructions, decisions = trace
        for number, (kind, inputs, attributes, outputs) in enumerate(instructions):
            refused = _refused(kind, inputs, attributes, outputs)
            if refused:
                raise InvalidRequest(f"instruction {number} of its trace, {str(kind)[:40]!r}: {refused} is not allowed")
        for number, decision in decisions:
            if not _is_plain([number, decision]):
                raise InvalidRequest(f"a decision of instruction {str(number)[:20]} of its trace is no number")
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidRequest(_NO_TRACE) from error


def _check_size(size_bytes: int) -> None:
    if size_bytes > MOST_TRACE_BYTES:
        raise InvalidRequest(f"its trace has {size_bytes:,} bytes, more than {MOST_TRACE_BYTES:,}")


def _end_of_known(text: str, start: int) -> int | None:
    """Return the position after a schedule of known, allowed instructions; None for any other."""
    divided = divide(text, start)
    if divided is None:
        return None
    try:
        pieces, middle = divided
        end = _end_of_decisions(text, middle)
        is_allowed = end is not None and all(map(_is_allowed, pieces))
    except (InvalidRequest, RecursionError, TypeError, ValueError):
        return None
    if end is None or not is_allowed or end - start >= MOST_TRACE_BYTES:
        return None
    return end + 1 if text.startswith("]", end) else None


def _end_of_decisions(text: str, start: int) -> int | None:
    """Return the position after a list of decisions; None if a decision is not numeric."""
    usual = USUAL_DECISIONS.match(text, start)
    if usual is not None:
        return usual.end()
    decisions, end = _decoder.raw_decode(text, start)
    return end if all(_is_plain([number, decision]) for number, decision in decisions) else None


@remembered
def _is_allowed(instruction: list[Any]) -> bool:
    kind, inputs, attributes, outputs = instruction
    return not _refused(kind, inputs, attributes, outputs)


def _refused(kind: object, inputs: object, attributes: object, outputs: object) -> str:
    """Return a description of the disallowed part of an instruction; empty if all of it is allowed."""
    if not isinstance(kind, str) or kind not in INSTRUCTIONS:
        return "this kind"
    if not (isinstance(inputs, list) and isinstance(attributes, list) and isinstance(outputs, list)):
        return "its form"
    bad = _first_bad(attributes, kind, _ATTRIBUTES.get(kind), has_variables=False)
    bad = bad or _first_bad(outputs, kind, None, has_variables=True)
    if bad:
        return bad
    key = str(attributes[0])[:60] if kind == "Annotate" and attributes else ""
    bad = _first_bad(inputs, kind, _WORDS.get(key), has_variables=True)
    return f"{bad} for the key {key!r}" if bad and key else bad or ""


def _first_bad(
    values: list[object], kind: str, words: re.Pattern[str] | None, *, has_variables: bool, depth: int = 0
) -> str | None:
    """Return a description of the first disallowed value, or None if all are allowed."""
    for value in values:
        if isinstance(value, str):
            if (has_variables and _VARIABLE.fullmatch(value)) or (words is not None and words.fullmatch(value)):
                continue
            if kind not in _MAPS or not value.startswith("{"):
                return repr(value[:60])
            check_nodes(value, INDEX_MAP_TYPES)
        elif isinstance(value, list):
            if depth == _DEEPEST:
                return "a list so deep"
            bad = _first_bad(value, kind, words, has_variables=has_variables, depth=depth + 1)
            if bad is not None:
                return bad
        elif not _is_plain(value):
            return repr(value)[:60]
    return None


def _is_plain(value: object, depth: int = 0) -> bool:
    """Tell whether a value is a number, None, or a nested list of these."""
    if isinstance(value, list):
        return depth < _DEEPEST and all(_is_plain(one, depth + 1) for one in value)
    return value is None or (isinstance(value, int | float) and abs(value) < _MOST_INTEGER)
