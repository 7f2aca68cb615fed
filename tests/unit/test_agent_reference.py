"""Drift of a device from its usual speed, measured with the reference kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from device_agents.measuring.reference import ReferenceTimes
from device_agents.runtimes.reference_kernels import CopyReferenceKernel
from device_agents.runtimes.simulated import SimulatedRuntime
from device_agents.workers.worker import answer
from fleet.domain.measuring import Disturbance, DisturbanceKind
from fleet.v1 import worker_pb2

CALM = (1.0, 1.01, 1.02)
PID = 7


def taken(*runs: tuple[float, ...], limit: float = 1.15) -> ReferenceTimes:
    """Return a reference after some runs, a second apart."""
    reference = ReferenceTimes(limit)
    for second, run in enumerate(runs):
        reference.take(run, PID, float(second))
    return reference


@pytest.mark.parametrize("secs", [(math.nan,), (math.inf, -math.inf), (0.0,), (-1.0, 1.0), (1e308, 1e308)])
def test_impossible_times_become_none(secs: tuple[float, ...]) -> None:
    """Impossible times from a candidate that answers in its worker's place neither break the agent nor change the usual
    time.
    """
    reference = taken(CALM, CALM, secs)

    assert (reference.latest_sec, reference.usual_sec) == (pytest.approx(1.01), 1.0)
    assert reference.drift is None


def test_calm_runs_are_usual() -> None:
    """A little noise is no drift, and no disturbance is reported."""
    reference = taken(CALM, CALM, (1.0, 1.1, 1.2))

    assert not reference.has_drifted
    assert reference.drift is None
    assert reference.usual_sec == pytest.approx(1.0)
    assert reference.latest_sec == pytest.approx(1.1)


def test_a_slow_clock_is_a_drift() -> None:
    """A slow clock or another governor slows down all pieces of the kernel."""
    reference = taken(CALM, CALM, (1.3, 1.31, 1.32))

    assert reference.has_drifted
    assert reference.drift == Disturbance(DisturbanceKind.REFERENCE_DRIFT, "reference kernel 1.31 times its usual time")


def test_a_busy_core_shows_in_the_very_first_run() -> None:
    """Some pieces are fast, others were interrupted: no history is needed to see that."""
    assert taken((1.0, 1.0, 4.0)).has_drifted


def test_it_is_over_as_soon_as_a_run_is_calm() -> None:
    """A calm run ends a drift at once."""
    assert not taken(CALM, (2.0, 2.0, 2.0), CALM).has_drifted


def test_drifted_runs_do_not_become_usual() -> None:
    """A minute of throttling leaves the measure as it was."""
    reference = taken(CALM, *[(2.0, 2.0, 2.0)] * 60)

    assert reference.usual_sec == pytest.approx(1.0)
    assert reference.has_drifted


def test_a_drift_that_lasts_becomes_usual() -> None:
    """After ten minutes the drift becomes the usual time; otherwise measurements would be repeated for ever."""
    reference = taken(CALM, *[(2.0, 2.0, 2.0)] * 602)

    assert not reference.has_drifted
    assert reference.usual_sec == pytest.approx(2.0)


def test_a_first_run_on_a_slow_clock_is_corrected() -> None:
    """If the device was cold, slow or busy throughout the first run, later and faster runs set the usual time."""
    reference = taken((3.0, 3.0, 3.0), CALM, CALM, CALM, CALM)

    assert reference.usual_sec == pytest.approx(1.0)
    assert not reference.has_drifted


def test_a_drift_in_small_steps_is_noticed() -> None:
    """It grows by a tenth each minute. Before, the usual time followed within 15 s, and no step was a drift."""
    reference = taken(*[CALM] * 40)

    for second in range(40, 240):
        slower = 1.1 ** ((second - 40) // 60)
        reference.take([slower * sec for sec in CALM], PID, float(second))

    assert reference.has_drifted
    assert reference.usual_sec == pytest.approx(1.0)


def test_a_holder_that_slowed_the_device_down_for_long_leaves_no_mark() -> None:
    """Before, its slow times became usual, and hid the next holder's drift until the history was full again."""
    reference = taken(CALM, *[(2.0, 2.0, 2.0)] * 640, CALM, CALM, CALM)

    assert reference.usual_sec == pytest.approx(1.0)
    reference.take((1.3, 1.3, 1.3), PID, 700.0)
    assert reference.has_drifted


def test_one_fast_run_has_no_effect() -> None:
    """One fast run may come from a short boost of the clock."""
    assert taken(*[CALM] * 8, (0.8, 0.8, 0.8), CALM).usual_sec == pytest.approx(1.0)


def test_where_a_run_costs_a_worker_it_is_due_less_often() -> None:
    """A board that serves one worker at a time needs a fresh worker for each run."""
    reference = ReferenceTimes(is_costly=True)
    reference.take(CALM, PID, 0.0)

    assert not reference.is_due(PID, 9.0)
    assert reference.is_due(PID, 11.0)


def test_when_it_is_due() -> None:
    """It is due in a new worker, after 0.5 s of measuring, at the end of a batch, and sooner after a drift."""
    reference = taken(CALM)

    assert not reference.is_due(PID, 0.1)
    assert reference.is_due(PID, 0.1, is_wanted=True)
    assert reference.is_due(PID, 1.0)
    assert reference.is_due(PID + 1, 0.1)
    assert not reference.is_due(PID, 0.4)
    reference.take((2.0, 2.0, 2.0), PID, 0.1)
    assert reference.is_due(PID, 0.4)
    assert not reference.is_due(PID, 0.2)


def test_an_old_time_is_no_evidence_for_the_present() -> None:
    """A device that was idle for a minute shows a gap, not a line."""
    reference = taken(CALM)

    assert reference.current_sec(1.0) == reference.latest_sec
    assert reference.current_sec(60.0) is None


def test_a_device_without_one_is_never_asked_again() -> None:
    """A device without a reference has no drift."""
    reference = taken(())

    assert not reference.is_due(PID, 100.0, is_wanted=True)
    assert not reference.has_drifted
    assert reference.latest_sec is None


class OnceOutOfMemory(SimulatedRuntime):
    """Its reference kernel fails in the second run."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = 0

    def reference(self) -> list[float]:
        self._runs += 1
        if self._runs == 2:
            raise MemoryError("out of memory")
        return list(CALM)


def test_a_run_that_fails_is_missed() -> None:
    """A run fails if a candidate has taken all memory; before, drifts went unnoticed until the agent was restarted."""
    runtime, reference = OnceOutOfMemory(), ReferenceTimes()
    order = worker_pb2.WorkerRequest(reference=worker_pb2.ReferenceRequest())

    for second in range(2):
        reference.take(answer(order, runtime).reference.secs, PID, float(second))

    assert reference.usual_sec == 1.0
    assert reference.is_due(PID, 5.0)


def test_an_empty_answer_of_a_device_that_has_one_is_missed() -> None:
    """A candidate that answers in its worker's place turns nothing off."""
    assert taken(CALM, ()).is_due(PID, 5.0)


def test_a_kernel_that_kills_its_worker_again_and_again_rests() -> None:
    """One crash may be the fault of the candidate before; three in a row cost three workers."""
    reference = ReferenceTimes()

    for _ in range(3):
        assert reference.is_due(PID, 0.0)
        reference.miss(0.0)

    assert not reference.is_due(PID, 299.0)
    assert not reference.is_due(PID + 1, 299.0, is_wanted=True)


def test_a_kernel_that_rested_is_tried_again() -> None:
    """Three failures, such as candidates that take all memory, stop the reference only for a while."""
    reference = taken(CALM, (), (), ())

    assert not reference.is_due(PID, 302.0)
    assert reference.is_due(PID, 303.0)
    reference.take((), PID, 303.0)
    assert not reference.is_due(PID, 602.0)
    reference.take((2.0, 2.0, 2.0), PID, 603.0)

    assert reference.has_drifted
    assert reference.is_due(PID, 604.0)


class Gpu:
    """A GPU that copies at a given rate; its host needs some time to start each copy."""

    def __init__(self, *, bytes_per_sec: float, memory_bytes: int = 1 << 34, start_sec: float = 5e-6) -> None:
        self.now_sec = 0.0
        self.sizes: list[int] = []
        self._bytes_per_sec, self._memory_bytes, self.start_sec = bytes_per_sec, memory_bytes, start_sec

    def copier(self, size_bytes: int) -> Callable[[], object]:
        if 2 * size_bytes > self._memory_bytes:
            raise MemoryError
        self.sizes.append(size_bytes >> 20)

        def copy() -> None:
            self.now_sec += max(self.start_sec, size_bytes / self._bytes_per_sec)

        return copy

    def kernel(self) -> CopyReferenceKernel:
        return CopyReferenceKernel(self.copier, lambda: None, lambda: self.now_sec)


def test_copies_are_long_enough_that_a_busy_host_does_not_show() -> None:
    """On a fast GPU, a buffer of 8 MiB would measure the speed at which the host starts copies."""
    fast, slow = Gpu(bytes_per_sec=1.5e12), Gpu(bytes_per_sec=1e10)
    kernel = fast.kernel()
    calm = kernel()
    fast.start_sec *= 5

    assert fast.sizes == [8, 32, 128]
    assert kernel() == pytest.approx(calm)
    slow.kernel()
    assert slow.sizes == [8]


def test_a_gpu_without_room_for_large_copies_gets_smaller_ones() -> None:
    """A less exact reference is better than none."""
    small = Gpu(bytes_per_sec=1.5e12, memory_bytes=100 << 20)

    assert len(small.kernel()()) > 1
    assert small.sizes == [8, 32]
