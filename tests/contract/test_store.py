"""The contract of an artifact store: bounded, complete, and reliable for its users."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from device_agents.serving.store import ArtifactStore, disk_bytes
from fleet.base.digests import digest_of
from fleet.errors import ArtifactRefused, DiskFull, InvalidRequest

_UNIT_BYTES = 16 * 4096
_MAX_BYTES = 10 * _UNIT_BYTES
_MOST_FILES = 4
_CONTENTS = [bytes([units]) * (units * _UNIT_BYTES - 4096) for units in range(1, 7)]
"""Contents that take a number of units on the disk, including one block for name and inode."""

_SMALL = [b"%d" % number for number in range(6)]


def put(store: ArtifactStore, content: bytes, user: str) -> None:
    with store.receive(digest_of(content), len(content)) as incoming:
        incoming.write(content)
        incoming.finish(user)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    made = ArtifactStore(tmp_path, _MAX_BYTES)
    made.open()
    return made


async def test_find_returns_a_stored_file_unchanged(store: ArtifactStore) -> None:
    """Find returns a file with exactly the content."""
    put(store, b"content", "me")

    path = await store.find(digest_of(b"content"), "me")

    assert path is not None
    assert path.read_bytes() == b"content"


async def test_find_returns_none_for_a_missing_file(store: ArtifactStore) -> None:
    """The result is None, not an error."""
    assert await store.find(digest_of(b"never"), "me") is None


async def test_an_artifact_that_was_changed_is_used_by_no_later_session(store: ArtifactStore) -> None:
    """Its hash is checked at its first use in each session, whatever became of the file since it was put."""
    put(store, b"content", "me")
    path = await store.find(digest_of(b"content"), "me")
    assert path is not None
    store.release("me")
    path.chmod(0o644)
    path.write_bytes(b"an attacker's code")

    assert await store.find(digest_of(b"content"), "another") is None
    assert not path.exists()


def test_foreign_files_in_the_folder_are_kept(tmp_path: Path) -> None:
    """A user's state directory may contain a folder of the same name; its files do not count and are kept."""
    files = [tmp_path / "my_kernel.so", tmp_path / "incoming" / "mail.txt"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(2 * _MAX_BYTES))

    ArtifactStore(tmp_path, _MAX_BYTES).open()

    assert [file.stat().st_size for file in files] == [2 * _MAX_BYTES] * 2


def test_directories_are_private_to_the_agent(store: ArtifactStore, tmp_path: Path) -> None:
    """Directories of an agent are its own."""
    assert [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "incoming")] == [0o700, 0o700]


async def test_the_least_recently_used_goes_first(store: ArtifactStore) -> None:
    """Finding counts as use."""
    for content in (_CONTENTS[3], _CONTENTS[2], _CONTENTS[1]):
        put(store, content, "me")
    await store.find(digest_of(_CONTENTS[3]), "me")
    store.release("me")

    put(store, _CONTENTS[0] + _CONTENTS[1], "me")

    kept = [await store.find(digest_of(content), "me") is not None for content in _CONTENTS[1:4]]
    assert kept == [True, False, True]


async def test_an_upload_that_stops_half_way_is_removed(store: ArtifactStore, tmp_path: Path) -> None:
    """The store and the disk keep no part of it."""
    with store.receive(digest_of(b"content"), 7) as incoming:
        incoming.write(b"cont")
    with store.receive(digest_of(b"content"), 7) as incoming:
        incoming.write(b"contemt")
        with pytest.raises(ArtifactRefused):
            incoming.finish("me")

    assert await store.find(digest_of(b"content"), "me") is None
    assert files_below(tmp_path) == []


async def test_a_restart_keeps_intact_files_and_drops_damaged_ones(store: ArtifactStore, tmp_path: Path) -> None:
    """A file cut short, or changed with its length kept, is not served."""
    for content in _CONTENTS[:3]:
        put(store, content, "me")
    paths = [await store.find(digest_of(content), "me") for content in _CONTENTS[:3]]
    for path, content in ((paths[0], _CONTENTS[0][:5]), (paths[1], b"x" * len(_CONTENTS[1]))):
        path.chmod(0o600)
        path.write_bytes(content)

    again = ArtifactStore(tmp_path, _MAX_BYTES)
    again.open()

    found = [await again.find(digest_of(content), "me") is not None for content in _CONTENTS[:3]]
    assert found == [False, False, True]


@pytest.mark.parametrize(
    "digest", ["", "sha256:", "sha256:../x", "md5:" + "0" * 64, "sha256:" + "0" * 63, "sha256:" + "0" * 64 + "\n"]
)
async def test_only_digests_are_names(store: ArtifactStore, digest: str) -> None:
    """Other names never reach the file system."""
    with pytest.raises(InvalidRequest):
        await store.find(digest, "me")
    with pytest.raises(InvalidRequest):
        store.receive(digest, 1)


class StoreMachine(RuleBasedStateMachine):
    """Users put, use and leave in any order, with restarts in between."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        self.used: dict[str, set[bytes]] = {}
        self.start()

    def start(self) -> None:
        self.store = ArtifactStore(self.path, _MAX_BYTES, _MOST_FILES)
        self.store.open()
        self.used = {}

    @rule(content=st.sampled_from(_CONTENTS + _SMALL), user=st.sampled_from("abc"))
    def put(self, content: bytes, user: str) -> None:
        held = {used for contents in self.used.values() for used in contents}
        try:
            put(self.store, content, user)
        except DiskFull:
            needed = sum(disk_bytes(len(each)) for each in {*held, content})
            assert needed > _MAX_BYTES or len({*held, content}) > _MOST_FILES or content in held
            return
        self.used.setdefault(user, set()).add(content)

    @rule(user=st.sampled_from("abc"))
    def release(self, user: str) -> None:
        self.store.release(user)
        self.used.pop(user, None)

    @rule()
    def restart(self) -> None:
        self.start()

    @invariant()
    def is_bounded(self) -> None:
        """The bound holds on the disk, not only in the books."""
        found = [path.stat() for path in self.path.glob("*.so")]
        assert len(found) <= _MOST_FILES
        assert sum(512 * status.st_blocks for status in found) <= self.store.size_bytes <= _MAX_BYTES
        assert sum(disk_bytes(status.st_size) for status in found) == self.store.size_bytes

    @invariant()
    def what_is_used_is_there(self) -> None:
        """Artifacts in use stay, regardless of later uploads."""
        for contents in self.used.values():
            for content in contents:
                path = self.path / f"{digest_of(content).removeprefix('sha256:')}.so"
                assert path.read_bytes() == content

    def teardown(self) -> None:
        self._folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_files_of_a_few_bytes_are_counted_as_the_disk_counts_them(store: ArtifactStore, tmp_path: Path) -> None:
    """32,000 artifacts of five bytes took 117 MiB of the disk and counted as 0.15 MiB."""
    for number in range(_MAX_BYTES // 8192 + 10):
        put(store, b"%05d" % number, "me")
        store.release("me")

    assert len(files_below(tmp_path)) == _MAX_BYTES // 8192
