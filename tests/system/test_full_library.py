"""A library on a full disk: commands print one clear line, and no acknowledged data is lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fleet.domain.scope import RecordScope
from fleet.library import Library, Record, StoredWorkload
from fleet.library.exchange import export_json
from fleet.workloads.programs import matmul
from tests.programs import here
from tests.system.fleet_processes import FLEET

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_FULL = "error: no space left for the library sqlite:///{}; free some, or name another --library"
_LOOK = """
import json, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
count = lambda table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
(intact,) = database.execute("PRAGMA integrity_check").fetchone()
print(json.dumps({"intact": intact, "records": count("records"), "jobs": count("jobs")}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallDisk:
    """A file system of 1 MiB, mounted in its own namespace."""

    pid: int
    """Id of the process that keeps the namespace alive."""

    library: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", "--target", str(self.pid), "--user", "--mount", "--preserve-credentials"]
        return subprocess.run([*inside, *words], env=here(), capture_output=True, text=True, timeout=200)

    def fleet(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(FLEET, *words, "--library", str(self.library))

    def grow(self) -> None:
        self.run("mount", "-o", "remount,size=64m", str(self.library.parent)).check_returncode()

    def look(self) -> dict[str, object]:
        """Return the content of the library, read by another process."""
        done = self.run(sys.executable, "-c", _LOOK, str(self.library))
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    script = f"mount -t tmpfs -o size=1m none {folder} && echo up && exec sleep 600"
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n", "needs user namespaces"
        yield SmallDisk(pid=holder.pid, library=folder / "l.sqlite")
        holder.kill()


def errors(done: subprocess.CompletedProcess[str]) -> Sequence[str]:
    """Return the errors on stderr. A busy machine prints lines of progress before them."""
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def big_model(folder: Path) -> Path:
    """Return a model of 2 MiB that cannot be compressed."""
    weights = np.random.default_rng(0).random((512, 1024), dtype=np.float32)
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [1, size]) for name, size in (("x", 512), ("y", 1024)))
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(onnx.helper.make_model(graph), folder / "big.onnx")
    return folder / "big.onnx"


def test_a_submitted_job_that_was_acknowledged_stays(disk: SmallDisk, tmp_path: Path) -> None:
    """The next job's model does not fit: the submit fails with one line and leaves no partial job."""
    kept = disk.fleet("jobs", "submit", "matmul-16")
    refused = disk.fleet("jobs", "submit", str(big_model(tmp_path)))
    listed = disk.fleet("jobs", "list", "--json")

    assert kept.returncode == 0, kept.stderr
    assert (refused.returncode, errors(refused)) == (1, [_FULL.format(disk.library)])
    assert [job["name"] for job in json.loads(listed.stdout)["jobs"]] == [kept.stdout.strip()]
    disk.grow()
    assert disk.fleet("jobs", "submit", str(tmp_path / "big.onnx")).returncode == 0
    assert disk.look() == {"intact": "ok", "records": 0, "jobs": 2}


def test_an_import_goes_on_when_there_is_room(disk: SmallDisk, tmp_path: Path) -> None:
    """Stored records stay, and repeating the import adds the others without duplicates."""
    count, folder, scope = 4000, tmp_path / "files", RecordScope(target_json="", device_model="m", tvm_version="0")
    with Library.open(tmp_path / "source.sqlite") as source:
        source.add_workload(StoredWorkload(shash="1", name="matmul", mod_json=matmul(16).mod_json))
        target = RecordScope(target_json='{"kind":"llvm"}', device_model="m", tvm_version="0")
        source.add_record(Record(workload="1", scope=target, trace_json="[[],[]]", run_secs=(1.0,)))
        export_json(source, folder)
    file = folder / "database_tuning_record.json"
    line = file.read_text().strip()
    assert line.count("],[1],{") == 1
    file.write_text("".join(line.replace("],[1],{", f"],[{1 + number / count}],{{") + "\n" for number in range(count)))
    words = ("library", "import", str(folder), "--device-model", scope.device_model, "--tvm-version", "0")

    refused = disk.fleet(*words)
    kept = int(str(disk.look()["records"]))
    disk.grow()
    again = disk.fleet(*words)

    assert (refused.returncode, errors(refused)) == (1, [_FULL.format(disk.library)])
    assert kept < count
    assert again.returncode == 0, again.stderr
    assert f"Imported {count} records" in again.stderr
    assert disk.look() == {"intact": "ok", "records": count, "jobs": 0}


def test_a_search_on_a_full_disk_keeps_its_measurements(disk: SmallDisk, tmp_path: Path) -> None:
    """The search stores every trial that it counted, ends with the reason, and resumes once there is space."""
    words = ("--log-level", "info", "tune", "matmul-64", "--on", "simulated", "--trials", "1000", "--no-model")
    done = disk.fleet(*words)
    counted = [int(number) for number in re.findall(r"; (\d+)/1000 trials", done.stderr)]
    kept = int(str(disk.look()["records"]))
    full_again = disk.fleet("jobs", "submit", str(big_model(tmp_path)))  # a small job may fit into free pages
    disk.grow()
    later = disk.fleet("tune", "matmul-64", "--on", "simulated", "--trials", "8", "--no-model", "--json")

    assert (done.returncode, errors(done)) == (1, [_FULL.format(disk.library)]), done.stderr
    assert 0 < max(counted) <= kept
    assert (full_again.returncode, errors(full_again)) == (1, [_FULL.format(disk.library)])
    assert later.returncode == 0, later.stderr
    assert disk.look()["intact"] == "ok"
    assert int(str(disk.look()["records"])) > kept
