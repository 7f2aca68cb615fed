"""How a worker's failures are classed, and what it has written to disk is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_agents.runtimes.contract import CandidateFailed, classify
from device_agents.workers.limits import count_files
from fleet.domain.measuring import ErrorKind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), ErrorKind.OUT_OF_MEMORY),
        (RuntimeError("std::bad_alloc"), ErrorKind.OUT_OF_MEMORY),
        (RuntimeError("CUDA: out of memory"), ErrorKind.OUT_OF_MEMORY),
        (OSError(28, "No space left on device"), ErrorKind.OUT_OF_DISK),
        (ValueError("something else"), ErrorKind.RUN_FAILED),
        (CandidateFailed(ErrorKind.LOAD_FAILED, "x"), ErrorKind.LOAD_FAILED),
    ],
)
def test_failures_are_classed_by_what_happened(error: Exception, kind: ErrorKind) -> None:
    """Memory and disk are told from all else."""
    assert classify(error).kind == kind
    assert str(classify(error))


def test_a_directory_is_measured_with_all_below_it(tmp_path: Path) -> None:
    """Blocks on disk, not apparent sizes: a sparse file is no harm."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(bytes([1]) * 100_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)

    count, size = count_files(str(tmp_path), at_most=100)
    assert count == 4
    assert 100_000 <= size < 300_000
    assert count_files(str(tmp_path / "gone"), at_most=100) == (0, 0)
    assert count_files(str(tmp_path), at_most=1)[0] == 2
