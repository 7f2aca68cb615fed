"""Small pure parts of the agent: versions, frames, failures, names, simulated kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents import frames
from device_agents.config import make_drivers, parse_config
from device_agents.registry import load_driver
from device_agents.runtimes import CandidateFailed, classify
from device_agents.simulated_runtime import SimulatedRuntime
from device_agents.watchdog import count_files
from fleet.errors import ConfigError
from fleet.tvm_versions import KNOWN_PAIRS, check_pair, check_versions
from fleet.v1 import measurement_pb2


def test_the_installed_pair_is_a_known_one() -> None:
    """The constraints of this repository and the check agree."""
    check_versions()


@pytest.mark.parametrize(
    ("tvm", "ffi", "text"),
    [
        (None, None, "apache-tvm and apache-tvm-ffi not installed"),
        ("0.27.0.post1", None, "apache-tvm-ffi not installed"),
        ("0.27.0.post1", "0.1.15.post2", "crashes with apache-tvm 0.27.0.post1"),
        ("0.20.0", "0.1.14.post1", "none of the tested versions"),
    ],
)
def test_other_pairs_are_refused_with_what_to_install(tvm: str | None, ffi: str | None, text: str) -> None:
    """The message holds the command."""
    with pytest.raises(ConfigError, match=text) as caught:
        check_pair(tvm, ffi)

    assert f"apache-tvm-ffi=={KNOWN_PAIRS['0.27.0.post1']}" in str(caught.value)


@given(st.binary(max_size=1000))
def test_frames_say_their_length(content: bytes) -> None:
    """Header and content, nothing else."""
    frame = frames.format_frame(content)

    assert frames.parse_header(frame[:4]) == len(content)
    assert frame[4:] == content


def test_a_length_that_cannot_be_is_refused() -> None:
    """Garbage on the socket does not make the agent wait for gigabytes."""
    with pytest.raises(frames.BrokenFrame):
        frames.parse_header(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), measurement_pb2.ERROR_KIND_OUT_OF_MEMORY),
        (RuntimeError("std::bad_alloc"), measurement_pb2.ERROR_KIND_OUT_OF_MEMORY),
        (RuntimeError("CUDA: out of memory"), measurement_pb2.ERROR_KIND_OUT_OF_MEMORY),
        (OSError(28, "No space left on device"), measurement_pb2.ERROR_KIND_OUT_OF_DISK),
        (ValueError("something else"), measurement_pb2.ERROR_KIND_RUN_FAILED),
        (CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, "x"), measurement_pb2.ERROR_KIND_LOAD_FAILED),
    ],
)
def test_failures_are_classed_by_what_happened(error: Exception, kind: int) -> None:
    """Memory and disk are told from all else."""
    assert classify(error).kind == kind
    assert str(classify(error))


def test_an_unknown_driver_names_the_nearest_and_lists_all() -> None:
    """A typo is found at once."""
    with pytest.raises(ConfigError, match=r"did you mean 'cpu'.*cpu, .*simulated"):
        load_driver("cpuu", where="agent.yaml: devices[0]")


def test_devices_are_named_by_host_and_driver() -> None:
    """Without names; counted devices get a number."""
    config = parse_config({"devices": [{"driver": "cpu"}, {"driver": "simulated", "count": 2}]})

    names = [driver.name for driver in make_drivers(config, host_name="box")]

    assert names == ["devices/box-cpu", "devices/box-simulated-0", "devices/box-simulated-1"]


def test_the_default_is_this_machines_cpu() -> None:
    """No file, no questions."""
    assert [driver.name for driver in make_drivers(parse_config({}), host_name="box")] == ["devices/box-cpu"]


def measure(path: Path, content: bytes, **settings: float) -> measurement_pb2.Measurement:
    path.write_bytes(content)
    runtime = SimulatedRuntime(time_scale=0.0, **settings)
    return runtime.measure(measurement_pb2.MeasureRequest(candidate_id="c", artifact_digest="d"), str(path))


def test_simulated_times_follow_from_the_content(tmp_path: Path) -> None:
    """The same content takes the same time, another content another, within the documented range."""
    secs = [measure(tmp_path / "a", content).run_secs[0] for content in (b"one", b"one", b"two")]

    assert secs[0] == secs[1] != secs[2]
    assert all(0.4e-4 < sec < 5e-4 for sec in secs)


def test_simulated_seeds_are_other_devices(tmp_path: Path) -> None:
    """What is fast on one need not be fast on another."""
    assert measure(tmp_path / "a", b"one", seed=1).run_secs != measure(tmp_path / "a", b"one", seed=2).run_secs


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpus": "fast"}, "devices[0]: cpus: expected all, big, little, or numbers"),
        ({"reference_limit": 1}, "devices[0]: reference_limit: expected a number above 1, found 1"),
        ({"threads": 0}, "devices[0]: threads: expected a number above zero, found 0"),
    ],
)
def test_a_cpu_device_that_no_machine_can_be_is_refused(settings: dict[str, object], message: str) -> None:
    """At the start, with the key."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_drivers(parse_config({"devices": [{"driver": "cpu", **settings}]}))
