"""A shared cache of built libraries: a lookup returns the stored library unchanged, or misses."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from cross.compile.cache import BuildCache, cache_key
from cross.targets.target import parse_target
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask, build_candidate
from fleet.domain.measuring import TensorSpec
from fleet.optimizer.tasks.propose import ProposeTask, propose
from fleet.workloads.programs import matmul

TARGET = parse_target('{"kind": "llvm", "mcpu": "x86-64-v3"}')


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(folder=str(tmp_path / "cache"))


def make_artifact(folder: Path, content: bytes = b"code" * 1000) -> Artifact:
    folder.mkdir(exist_ok=True)
    (folder / "built.so").write_bytes(content)
    args = (TensorSpec((2, 3), "float32"), TensorSpec((2,), "float32", is_output=True))
    return Artifact.of_file(folder / "built.so", function="f", args=args, target_json=TARGET.json, linker="ld")


def entry_of(cache: BuildCache, key: str) -> Path:
    return Path(cache.folder, key[:2], key)


def key_of(number: int) -> str:
    """Return a key in the form that caches use."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_get_returns_the_stored_build_with_its_facts(cache: BuildCache, tmp_path: Path) -> None:
    """Content, digest and facts are those of the build, in the requested folder."""
    made = make_artifact(tmp_path / "made")

    cache.put("abc", made)
    found = cache.get("abc", tmp_path)

    assert found is not None
    assert found.path.read_bytes() == made.path.read_bytes()
    assert found.path == tmp_path / f"{made.digest.removeprefix('sha256:')}.so"
    assert Artifact.of_file(found.path) == found
    assert (found.digest, found.facts_json()) == (made.digest, made.facts_json())
    assert cache.get("abd", tmp_path) is None


@pytest.mark.parametrize("place", [0, 70, -1], ids=["digest", "facts", "content"])
def test_damage_is_a_miss(cache: BuildCache, tmp_path: Path, place: int) -> None:
    """One flipped bit removes the entry, so that a build replaces it."""
    cache.put("abc", make_artifact(tmp_path / "made"))
    content = bytearray(entry_of(cache, "abc").read_bytes())
    content[place] ^= 1
    entry_of(cache, "abc").write_bytes(content)

    assert cache.get("abc", tmp_path) is None
    assert not entry_of(cache, "abc").exists()


def test_a_half_written_entry_is_a_miss(cache: BuildCache, tmp_path: Path) -> None:
    """A power cut may leave any part of a file under its final name."""
    cache.put("abc", make_artifact(tmp_path / "made"))
    whole = entry_of(cache, "abc").read_bytes()

    for size in (0, 10, 64, 65, len(whole) - 1):
        entry_of(cache, "abc").write_bytes(whole[:size])
        assert cache.get("abc", tmp_path) is None


def test_the_least_recently_used_entry_is_evicted(cache: BuildCache, tmp_path: Path) -> None:
    """The limit holds after a look, and the oldest use goes first, whether it was a put or a get."""
    made = [make_artifact(tmp_path / str(n), random.Random(n).randbytes(10_000)) for n in range(5)]
    for number, each in enumerate(made):
        cache.put(key_of(number), each)
        os.utime(entry_of(cache, key_of(number)), (number, number))
    assert cache.get(key_of(0), tmp_path) is not None

    BuildCache(folder=cache.folder, max_bytes=35_000).trim()

    assert {path.name for path in (tmp_path / "cache").glob("*/*")} == {key_of(0), key_of(3), key_of(4)}


def test_foreign_files_in_the_cache_folder_are_kept(tmp_path: Path) -> None:
    """A folder with other contents, such as a home directory, loses none of them."""
    models = tmp_path / "ml"
    models.mkdir()
    (models / "weights.bin").write_bytes(bytes(2000))
    (models / ".notes").write_text("of last year")
    for path in models.iterdir():
        os.utime(path, (1, 1))

    BuildCache(folder=str(tmp_path), max_bytes=1000).trim()

    assert sorted(path.name for path in models.iterdir()) == [".notes", "weights.bin"]


def test_writers_trim_a_full_cache(tmp_path: Path) -> None:
    """Writers trim the cache by themselves: many puts stay near the limit."""
    made = make_artifact(tmp_path / "made", random.Random(0).randbytes(1000))
    cache = BuildCache(folder=str(tmp_path / "cache"), max_bytes=100_000)
    chance = random.Random(1)

    for number in range(300):
        cache.put(key_of(number), made, chance)

    sizes = [path.stat().st_size for path in (tmp_path / "cache").glob("*/*")]
    assert 80_000 < sum(sizes) < 110_000


def test_stale_files_of_a_dead_writer_are_removed(cache: BuildCache, tmp_path: Path) -> None:
    """Half-written files of others are left alone for an hour."""
    cache.put("abc", make_artifact(tmp_path / "made"))
    fresh, old = (entry_of(cache, "abc").with_name(f".{sign * 32}") for sign in "ab")
    for path in (fresh, old):
        path.touch()
    os.utime(old, (1, 1))

    cache.trim()

    assert (fresh.exists(), old.exists()) == (True, False)


def test_a_folder_that_cannot_be_written_costs_no_build(tmp_path: Path) -> None:
    """A build works without its cache."""
    (tmp_path / "file").touch()
    cache = BuildCache(folder=str(tmp_path / "file"))

    cache.put("abc", make_artifact(tmp_path / "made"))

    assert cache.get("abc", tmp_path) is None


def test_a_full_disk_is_a_cache_miss(cache: BuildCache, tmp_path: Path) -> None:
    """The build that follows reports the disk's problem; an error here counted as the candidate's own failure."""
    cache.put("abc", make_artifact(tmp_path / "made"))
    (tmp_path / "file").touch()

    assert cache.get("abc", tmp_path / "file" / "out") is None


@pytest.mark.slow
def test_a_candidate_is_compiled_once(cache: BuildCache, tmp_path: Path) -> None:
    """A build takes its program's library and features from the cache; another program is compiled."""
    workload = matmul(16)
    task = ProposeTask(mod_json=workload.mod_json, target=TARGET, count=2)
    tasks = [
        BuildTask(
            mod_json=workload.mod_json,
            target=TARGET,
            trace_json=proposal.trace_json,
            out_dir=str(tmp_path),
            cache=cache,
        )
        for proposal in propose(task)
    ]
    first = build_candidate(tasks[0])
    (entry,) = Path(cache.folder).glob("*/*")
    marked = make_artifact(tmp_path / "marked")
    cache.put(entry.name, marked)

    again, other = build_candidate(tasks[0]), build_candidate(tasks[1])

    assert again.artifact.digest == marked.digest
    assert (again.program, again.packings) == (first.program, first.packings)
    assert again.features is not None
    assert other.artifact.digest not in (first.artifact.digest, marked.digest)
    assert len(list(Path(cache.folder).glob("*/*"))) == 2


def test_the_cache_key_of_a_library_has_all_its_inputs() -> None:
    """A library has one name for any order of a target's options, and none if the compiler's version is unknown."""
    options = {"function": "main", "checks_arguments": True, "tvm": "0.27"}
    names = [
        cache_key(1, TARGET, **options),
        cache_key(2, TARGET, **options),
        cache_key(1, parse_target(TARGET.json.replace("v3", "v4")), **options),
        cache_key(1, TARGET, **{**options, "tvm": "0.28"}),
        cache_key(1, TARGET, **{**options, "checks_arguments": False}),
    ]

    assert len(set(names)) == len(names)
    assert cache_key(1, parse_target('{"mcpu": "x86-64-v3", "kind": "llvm"}'), **options) == names[0]
    assert cache_key(1, parse_target('{"kind": "cuda", "arch": "sm_90"}'), **options) is None
