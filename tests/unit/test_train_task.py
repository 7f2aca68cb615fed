"""The training task: records of a library to a snapshot that knows devices and their siblings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet.cost_model.feature_codec import FEATURE_VERSION, TARGET_KINDS, pack_program
from fleet.cost_model.packaged_model import PATH, prior_samples
from fleet.cost_model.samples import Context, grouped
from fleet.cost_model.scoring import Ranker
from fleet.cost_model.snapshot import Snapshot
from fleet.cost_model.training import LEAST_SAMPLES
from fleet.domain.observation import Observation
from fleet.optimizer.tasks.train import train, train_anew

NEON = '{"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}'
CUDA = '{"arch": "sm_90", "kind": "cuda"}'
AVX = '{"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"}'


def measured(workload: int, device_model: str, target_key: str, *, rule: int) -> list[Observation]:
    """Return 12 candidates: more of the first column is slower, or faster where the rule is -1."""
    random = np.random.default_rng(workload)
    rows = np.abs(random.normal(5, 2, (12, 1, 164))).astype(np.float32)
    return [
        Observation(
            record_id=workload,
            workload=str(workload),
            target_key=target_key,
            device_model=device_model,
            run_sec=float(1e-3 * np.exp(rule * 0.4 * row[0, 0])),
            flop=1e6,
            kind="conv2d 1x1",
            is_disturbed=False,
            stores=pack_program(0, row).stores,
        )
        for row in rows
    ]


@pytest.mark.slow
def test_a_board_that_was_never_measured_is_ranked_as_its_siblings_are() -> None:
    """Experience with two device models counts for a third one that shares one of their instruction sets."""
    samples = [
        sample
        for workload in range(8)
        for sample in (
            *measured(workload, "old pi", NEON, rule=1),
            *measured(20 + workload, "server", AVX, rule=-1),
        )
    ]
    trained = train_anew(samples, None)
    assert trained is not None
    assert trained.snapshot.feature_version == FEATURE_VERSION
    shared = Snapshot.of(trained.snapshot.content)
    few, many = (np.full((1, 164), 5, np.float32) for _ in range(2))
    few[0, 0], many[0, 0] = 2, 8
    usual = [row.astype(np.float32) for row in np.random.default_rng(99).normal(5, 2, (20, 1, 164))]

    def gain_of_few(device_model: str, instruction_set: str) -> float:
        ranker = Ranker(shared, None, Context(device_model=device_model, instruction_set=instruction_set), records=0)
        ranker.score(usual)  # others are compared with the first candidates
        asked = ranker.score([few, many])
        return float(asked[0] / asked[1])

    assert gain_of_few("new pi", "neon") > gain_of_few("another board", "") > gain_of_few("new server", "avx2")
    assert gain_of_few("old pi", "neon") > gain_of_few("server", "avx2")


@pytest.mark.slow
def test_a_snapshot_is_asked_only_about_targets_that_it_has_learnt_of() -> None:
    """The first few records of a GPU are too few for training, so the snapshot must not score GPUs.

    Before, a model of processors was used for GPUs instead of the trees of the job's own records.
    """
    processors = [sample for workload in range(10) for sample in measured(workload, "pi", NEON, rule=1)]
    of_gpu = measured(10, "gpu", CUDA, rule=1)

    kinds = [
        trained.snapshot.metrics[TARGET_KINDS]
        for some in (of_gpu[:3], of_gpu)
        if (trained := train_anew([*processors, *some], None)) is not None
    ]

    assert kinds == [["llvm"], ["cuda", "llvm"]]


@pytest.mark.slow
def test_a_model_is_judged_on_shared_held_out_workloads() -> None:
    """Held-out GPU workloads do not show whether a model is better for processors than the packaged one."""
    of_processors = [one for workload in range(2, 6) for one in measured(workload, "pi", NEON, rule=1)]
    of_gpus = [one for workload in (14, 18, 24, 31) for one in measured(workload, "gpu", CUDA, rule=1)]  # all held out

    mixed = train_anew([*of_processors, *of_gpus, *measured(6, "gpu", CUDA, rule=1)], None)

    assert mixed is not None
    assert not mixed.is_not_worse


@pytest.mark.slow
def test_a_record_of_other_features_keeps_no_model_from_being_trained() -> None:
    """All other records are used for training."""
    samples = [sample for workload in range(4) for sample in measured(workload, "pi", NEON, rule=1)]
    odd = [
        replace(sample, workload=f"odd {number}", stores=pack_program(0, np.ones((1, 100), np.float32)).stores)
        for number, sample in enumerate(samples[:8])
    ]

    trained = train_anew([*samples, *odd], None)

    assert trained is not None
    assert set(trained.snapshot.workloads) <= {"0", "1", "2", "3"}


@pytest.mark.slow
def test_training_keeps_the_packaged_data() -> None:
    """A first library alone had taught less than the snapshot that it replaced. GPUs do not learn from processors."""
    of_pi = [sample for workload in range(2, 6) for sample in measured(workload, "pi", NEON, rule=1)]
    of_gpu = [sample for workload in range(2, 6) for sample in measured(workload, "gpu", CUDA, rule=1)]
    packaged = {group.workload for group in grouped(prior_samples(), least=LEAST_SAMPLES)}

    asked = (of_pi, of_gpu, [*of_pi, *of_gpu])
    found = [trained.snapshot for some in asked if (trained := train_anew(some, None)) is not None]

    known = found[0].metrics["workloads"] - 4
    assert 0.7 * len(packaged) < known < len(packaged)  # without the held-out workloads
    assert [snapshot.metrics["workloads"] for snapshot in found[1:]] == [4, 4]
    assert [snapshot.record_count for snapshot in found] == [48, 48, 96]


@pytest.mark.slow
def test_records_of_packaged_workloads_are_used() -> None:
    """Records of packaged workloads on another processor are used; the comparison model has not seen the
    held-out ones. The snapshot replaces one that was conditioned on the first records.
    """
    of_package = sorted({sample.workload for sample in prior_samples()})
    samples = [
        replace(sample, workload=workload)
        for number, workload in enumerate(of_package)
        for sample in measured(number, "pi", NEON, rule=1)
    ]

    conditioned = train(samples[:24], None)
    assert conditioned is not None

    trained = train(samples, conditioned.snapshot.content)

    assert trained is not None
    assert trained.is_not_worse
    assert not Snapshot.of(trained.snapshot.content).model.corrections
    assert set(trained.snapshot.workloads) < set(of_package)


def test_a_small_lab_gets_the_packaged_model_conditioned_on_its_records() -> None:
    """From the eighth record of its device on; before, nothing was published for fewer than some 15 workloads."""
    samples = measured(0, "pi", NEON, rule=1)

    assert train(samples[: LEAST_SAMPLES - 1], None) is None
    trained = train(samples[:LEAST_SAMPLES], None)

    assert trained is not None
    assert trained.is_not_worse
    assert trained.snapshot.record_count == LEAST_SAMPLES
    assert trained.snapshot.metrics[TARGET_KINDS] == ["llvm"]
    model = Snapshot.of(trained.snapshot.content).model
    assert {device for device, _ in model.corrections} == {"pi"}
    assert {kind for _, kind in model.corrections} == {"", "conv2d 1x1"}


def test_a_trained_model_in_use_is_not_replaced_by_a_conditioned_one() -> None:
    """The workload is held out, so that it cannot train another one either."""
    samples = measured(14, "pi", NEON, rule=1)

    assert train(samples, None) is not None
    assert train(samples, PATH.read_bytes()) is None


def test_graphics_processors_have_no_packaged_model_to_condition() -> None:
    """A single workload of a GPU teaches nothing."""
    assert train(measured(0, "gpu", CUDA, rule=1), None) is None
