"""Device limits bound the prioritizer's expectations."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fleet.base.plain import to_plain
from fleet.domain.measuring import TensorSpec
from fleet.domain.observation import Observation
from fleet.domain.roofline import MemoryRate, Roofline
from fleet.library import Library
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.planning import least_sec
from fleet.optimizer.core.progress import WorkloadProgress
from fleet.optimizer.limits import keep_roofline, known_roofline
from tests.unit.optimizer_core import Script, why_closed, workload

ROOFLINE = Roofline(flop_per_sec=1e9, memory=(MemoryRate(size_bytes=1 << 30, bytes_per_sec=1e9),), source="measured")


@pytest.mark.parametrize(("dtype", "expected"), [("float32", 1.0), ("int8", 1e-3)])
def test_a_workload_takes_as_long_as_its_operations_or_its_bytes(dtype: str, expected: float) -> None:
    """The peak was measured with float32; of shorter numbers only the bytes are sure."""
    item = dataclasses.replace(
        workload(), flop=1e9, args=(TensorSpec((int(1e6 / (4 if dtype == "float32" else 1)),), dtype),)
    )

    assert least_sec(item, ROOFLINE) == expected
    assert least_sec(item, Roofline(flop_per_sec=0.0)) == 0.0


@pytest.mark.parametrize(("best_sec", "is_done"), [(1.01, True), (1.5, False), (0.5, False)])
def test_a_workload_at_the_roofline_is_done(best_sec: float, is_done: bool) -> None:
    """A workload close to the limit is closed with a reason; others go on, and a roofline that was beaten is no
    limit.
    """
    item = WorkloadProgress(
        workload=dataclasses.replace(workload(), flop=1e9),
        right={"t": best_sec},
        records=[Observation(workload="w", trace_json="t", run_sec=best_sec)],
    )
    job = Script(item)

    job.core.limit(ROOFLINE)
    job.feed(ev.RoundWanted())

    assert why_closed(item) == ("within the device's limit: little is left to gain" if is_done else "")
    assert item.is_searched is not is_done


def test_a_roofline_is_measured_once_for_a_device_model(tmp_path: Path) -> None:
    """It is kept beside the other facts; another version's format is no error."""
    with Library.open(tmp_path / "library.sqlite") as library:
        library.memory.note_device("pi4", {"core_count": 4})
        assert known_roofline(library, "pi4") is None

        keep_roofline(library, "pi4", ROOFLINE)

        assert known_roofline(library, "pi4") == ROOFLINE
        assert library.memory.device_facts()["pi4"] == {"core_count": 4, "roofline": to_plain(ROOFLINE)}
        library.memory.note_device("pi4", {"roofline": {"flop_per_sec": "fast"}})
        assert known_roofline(library, "pi4") is None
