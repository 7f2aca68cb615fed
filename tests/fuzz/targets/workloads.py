"""Files of workloads, the rules that change them, and fragments in the library."""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib

from fleet.errors import ConfigError, InvalidRequest
from fleet.fragments.dimensions import DTYPE, NAMES
from fleet.fragments.rules import parse_rules
from fleet.fragments.stored import from_stored, to_stored
from fleet.fragments.workload_file import plain_fragment, to_text
from fleet.fragments.workload_reading import parse_workloads
from tests.fuzz.target import Target, no_loop

_FILE = b"""format: 1
target: {kind: llvm, num-cores: 2}
workloads:
- operator: conv2d 3x3 8->8 7x7
  name: fused_conv2d_add
  hash: '12'
  operations: 8.0e+3
  models: {m: 2}
  fragment:
    inputs: [{shape: [1, 8, 7, 7], dtype: float32}]
    weights: [{shape: [8, 8, 3, 3], dtype: float32}, {shape: [], dtype: float32, values: [.5]}]
    calls:
    - {operator: nn.conv2d, operands: [i0, w0], attributes: {strides: [1, 1], groups: 1, out_dtype: null}}
    - {operator: reshape, operands: [c0, {shape: [1, -1]}]}
    - {operator: add, operands: [c1, w1]}
"""
_RULES = b"""- match: 'conv2d 3x3*'
  set: {N: [1, 8], C: '[v, v * 2]', 'H,W': '[v, v // 2]', dtype: [float32, float16]}
  where: N * C * H * W <= 2 ** 22
"""
_WORDS = (
    b"!!python/object:os.system ",
    b"&a ",
    b"*a",
    b"<<: ",
    b"- ",
    b"0x",
    b".inf",
    b".nan",
    b"2001-01-01",
    b"!!set ",
)
_SIZES = dict.fromkeys(set(NAMES) - {DTYPE}, 12)
_FIRST = 20


def _workloads(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        found = parse_workloads(content.decode(errors="replace"), where="w.yaml")
        text = to_text(found.workloads, found.target)
        assert parse_workloads(text, where="again.yaml").workloads == found.workloads


def _rules(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        for rule in parse_rules(content.decode(errors="replace"), where="rules.yaml"):
            for values in itertools.islice(rule.combinations(_SIZES), _FIRST):
                assert all(isinstance(size, str) or 1 <= size <= 2**20 for size in values.values())


def _stored_fragment(content: bytes) -> None:
    for stored in (content, zlib.compress(content)):
        with contextlib.suppress(InvalidRequest):
            found = from_stored(stored)
            again = to_stored(found)
            assert again is None or from_stored(again) == found


def _fragment_seeds() -> list[bytes]:
    fragment = parse_workloads(_FILE.decode(), where="w.yaml").workloads[0].fragment
    return [json.dumps({"format": 1, "fragment": plain_fragment(fragment)}).encode()]


WORKLOADS = [
    Target(
        name="stored_fragment",
        run=no_loop(_stored_fragment),
        seeds=_fragment_seeds,
        words=(
            b"[",
            b"{",
            b"NaN",
            b"-Infinity",
            b"1e999",
            b"null",
            b'"c0.1"',
            b'"format": 2',
            b'\\ud800"',
            b'"values": [1]',
        ),
        large_bytes=4096,
        quick_inputs=60,
    ),
    Target(
        name="workload_file",
        run=no_loop(_workloads),
        seeds=lambda: [_FILE],
        words=(*_WORDS, b"operator: ", b"c0.1", b"shape: ", b"values: [1, 2]", b"hash: '1'"),
        large_bytes=4096,
        quick_inputs=40,
    ),
    Target(
        name="mutation_rules",
        run=no_loop(_rules),
        seeds=lambda: [_RULES, b"- match: '*'\n  set: {M: v ** 2, K: [1, 2 * v]}\n"],
        words=(*_WORDS, b" ** ", b"9999", b"()", b".a", b"[v]", b" if ", b"lambda: ", b"not ", b"KH", b"'N,C'"),
        large_bytes=4096,
        quick_inputs=60,
    ),
]
