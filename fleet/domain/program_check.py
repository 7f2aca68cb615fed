"""Allowlist for tensor programs in TVM's JSON: only arithmetic on tensors, no calls of foreign code.

A TIR function can call C functions, packed functions, LLVM intrinsics and inline assembly. Its attributes can import
whole modules of LLVM IR. No workload of a model needs these, so an untrusted program is refused unless all its nodes
are listed here. The check reads the JSON text and never parses it with TVM.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fleet.errors import InvalidRequest

MOST_PROGRAM_BYTES = 16 * 1024 * 1024
"""Workloads of generated models reach 0.4 MB."""

_MOST_REMEMBERED = 4096
_allowed: set[tuple[bytes, frozenset[str]]] = set()
"""Cache of passed checks: digests of the texts, which may have megabytes, and the allowed node kinds."""

_VALUES = frozenset({"None", "bool", "int", "float", "ffi.Array", "ffi.Map", "ffi.String"})
_ARITHMETIC = frozenset(
    {f"ir.{name}" for name in ("FloatImm", "IntImm", "PrimType", "Var")}
    | {f"prim.{name}" for name in ("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "Cast")}
    | {f"prim.{name}" for name in ("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "LShift", "RShift")}
    | {f"prim.{name}" for name in ("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not", "Select")}
)
INDEX_MAP_TYPES = _VALUES | _ARITHMETIC | {"tirx.IndexMap"}
"""Node kinds of an index map, as in schedules that change a layout."""

PROGRAM_TYPES = (
    _VALUES
    | _ARITHMETIC
    | {f"prim.{name}" for name in ("Broadcast", "Let", "Ramp", "Shuffle")}
    | {"ir.Call", "ir.DictAttrs", "ir.GlobalVar", "ir.IRModule", "ir.Op", "ir.Range"}
    | {"ir.SourceMap", "ir.SourceName", "ir.Span", "ir.TensorLoad", "ir.TensorRegion", "ir.TupleType", "ir.Type"}
    | {"relax.FuncType", "relax.ShapeType", "relax.TensorType", "relax.expr.ShapeExpr"}
    | {"s_tir.MatchBufferRegion", "s_tir.SBlock", "s_tir.SBlockRealize"}
    | {f"tirx.{name}" for name in ("AllocBuffer", "Bind", "BufferRegionType", "BufferStore", "BufferType", "Evaluate")}
    | {f"tirx.{name}" for name in ("For", "IfThenElse", "IterVar", "PrimFunc", "SeqStmt", "While")}
    | {"tirx.Axis", "tirx.Iter", "tirx.TileLayout"}
)
"""Node kinds of a workload."""

OPERATORS = frozenset(
    {f"prim.{name}" for name in ("ceil", "clz", "if_then_else", "likely", "log2")}
    | {f"tirx.{name}" for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin")}
    | {f"tirx.{name}" for name in ("sinh", "tan", "tanh", "erf", "exp", "exp2", "exp10", "log", "log10", "log1p")}
    | {f"tirx.{name}" for name in ("pow", "sqrt", "rsqrt", "sigmoid", "hypot", "ldexp", "copysign", "fabs", "fmod")}
    | {f"tirx.{name}" for name in ("floor", "round", "trunc", "nearbyint", "nextafter", "fma", "dp4a", "popcount")}
    | {f"tirx.{name}" for name in ("isfinite", "isinf", "isnan", "reinterpret", "q_multiply_shift")}
    | {"tirx.q_multiply_shift_per_axis"}
)
"""Scalar functions that a workload may call."""

ATTRIBUTES = frozenset(
    {"axis", "buffer_dim_align", "global_symbol", "layout_free_buffers", "op_pattern", "s_tir", "schedule_rule"}
    | {"tirx.is_scheduled", "tirx.noalias", "workload"}
    | {"fleet.attention", "fleet.constants", "fleet.recurrence", "fleet.winograd"}
)
"""Attributes of functions and annotations of blocks and loops that a workload may have."""


def check_program(mod_json: str) -> None:
    """Refuse a program that is not pure arithmetic on tensors.

    Raises:
        InvalidRequest: the message names the node and the kind, operator or attribute that is not allowed.
    """
    check_nodes(mod_json, PROGRAM_TYPES)


def check_nodes(text: str, types: frozenset[str]) -> None:
    """Refuse a text that is not a JSON graph of TVM, or has nodes of other kinds.

    Raises:
        InvalidRequest: see `check_program`.
    """
    if len(text) > MOST_PROGRAM_BYTES:
        raise InvalidRequest(f"its program has {len(text):,} bytes, more than {MOST_PROGRAM_BYTES:,}")
    key = hashlib.sha256(text.encode(errors="surrogatepass")).digest(), types
    if key in _allowed:
        return
    try:
        graph = json.loads(text)
        if not graph.keys() <= {"nodes", "root_index", "metadata"} or graph.get("metadata", {}).keys() - {
            "tvm_version"
        }:
            raise InvalidRequest("its program has parts beside nodes")
        nodes = graph["nodes"]
        for number, node in enumerate(nodes):
            _check_node(number, node, nodes, types)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidRequest("its program is not JSON as tvm.ir.save_json writes it") from error
    if len(_allowed) >= _MOST_REMEMBERED:
        _allowed.clear()
    _allowed.add(key)


def _check_node(number: int, node: dict[str, Any], nodes: list[dict[str, Any]], types: frozenset[str]) -> None:
    kind = node["type"]
    if kind not in types:
        raise InvalidRequest(f"node {number} of its program is a {_shown(kind)}, which no workload of a model needs")
    if kind == "ir.Op" and node["data"] not in OPERATORS:
        raise InvalidRequest(f"node {number} of its program calls {_shown(node['data'])}, which is no arithmetic")
    if kind == "ir.Call" and nodes[node["data"]["op"]]["type"] != "ir.Op":
        raise InvalidRequest(f"node {number} of its program calls another function")
    if kind == "ffi.Map":
        keys = [nodes[place] for place in node["data"][::2]]
        named = [key["data"] for key in keys if key["type"] == "ffi.String"]
        others = [key for key in keys if key["type"] not in ("ffi.String", "ir.GlobalVar", "ir.Var")]
        unknown = [name for name in named if name not in ATTRIBUTES and not _is_function_name(node, nodes)]
        if unknown or others:
            raise InvalidRequest(f"node {number} of its program has the attribute {_shown(unknown or others)}")


def _is_function_name(node: dict[str, Any], nodes: list[dict[str, Any]]) -> bool:
    """Tell whether a map is a module's map from function names to their variables."""
    return all(nodes[place]["type"] == "ir.GlobalVar" for place in node["data"][1::2])


def _shown(name: object) -> str:
    return repr(name)[:80]
