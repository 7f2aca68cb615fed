"""Canonical targets and digests of traces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.keys import canonical_target, trace_digest
from fleet.errors import InvalidRequest


def test_attributes_derived_by_tvm_are_ignored() -> None:
    """A target written back by TVM 0.27 is the target that the user wrote."""
    written_back = {
        "kind": "llvm",
        "tag": "",
        "keys": ["arm_cpu", "cpu"],
        "feature.has_sve": False,
        "num-cores": 4,
        "mtriple": "aarch64-linux-gnu",
    }
    given = {"mtriple": "aarch64-linux-gnu", "kind": "llvm", "num-cores": 4}

    assert canonical_target(json.dumps(given)) == canonical_target(json.dumps(written_back))
    cuda = '{"kind":"cuda","arch":"sm_80"}'
    by_tvm = '{"kind":"cuda","arch":"sm_80","max_num_threads":1024,"thread_warp_size":32,"host":{"kind":"llvm"}}'
    assert canonical_target(cuda) == canonical_target(by_tvm)


def test_attributes_set_by_the_user_are_kept() -> None:
    """Another processor, feature or core count is another target."""
    targets = [
        '{"kind":"llvm"}',
        '{"kind":"llvm","mcpu":"x86-64-v3"}',
        '{"kind":"llvm","mcpu":"x86-64-v3","num-cores":2}',
        '{"kind":"llvm","mattr":["+neon"]}',
        '{"kind":"cuda","max_num_threads":512}',
        '{"kind":"cuda"}',
    ]
    assert len({canonical_target(target) for target in targets}) == len(targets)


def test_a_plain_kind_is_a_target() -> None:
    """ "llvm" is short for {"kind": "llvm"}; no target stays none."""
    assert canonical_target("llvm") == canonical_target('{"kind": "llvm"}')
    assert canonical_target(" ") == ""


@pytest.mark.parametrize("text", ["llvm -mcpu=x", "[1]", '{"mcpu": "x"}', "{"])
def test_an_invalid_target_is_refused(text: str) -> None:
    """TVM's old command-line spelling and broken JSON are the caller's mistakes."""
    with pytest.raises(InvalidRequest):
        canonical_target(text)


traces = st.recursive(
    st.integers() | st.booleans() | st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists
).map(lambda value: [value])


@given(traces)
def test_a_digest_ignores_spelling(trace: list[object]) -> None:
    """White space does not count, and neither does writing numbers with 20 digits as TVM does."""
    from fleet.library.exchange import to_text

    digest = trace_digest(json.dumps(trace))

    assert digest == trace_digest(json.dumps(trace, indent=2))
    assert digest == trace_digest(to_text(trace))


def test_a_decision_counts() -> None:
    """Another tile size is another candidate; no trace has no digest."""
    assert trace_digest("[[1],[]]") != trace_digest("[[2],[]]")
    assert trace_digest("") == ""
    with pytest.raises(InvalidRequest):
        trace_digest("nonsense")
