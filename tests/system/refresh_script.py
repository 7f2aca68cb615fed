"""Refreshes of a library of scripts: a simulated device takes the time that an artifact's text says.

As a process: python -m tests.system.refresh_script LIBRARY TRACKER SCRIPT
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet import aio
from fleet.artifacts.artifact import Artifact
from fleet.base.digests import digest_of
from fleet.building.built_candidate import BuiltCandidate
from fleet.building.turns import Turns
from fleet.client.steady import SteadyDevice
from fleet.domain.keys import trace_digest
from fleet.domain.leases import make_terms
from fleet.domain.making import Making
from fleet.domain.observation import Observation
from fleet.domain.origin import Origin, Source
from fleet.domain.scope import RecordScope
from fleet.domain.workload import Workload
from fleet.errors import BuildError
from fleet.fragments.lowering import Reason, Refusal
from fleet.library import Library, Record, StoredWorkload
from fleet.optimizer.core.candidates import Candidate
from fleet.optimizer.core.events import Checked, Verdict
from fleet.optimizer.refreshing.plan import Program
from fleet.optimizer.refreshing.programs import Lowered
from fleet.optimizer.refreshing.report import RefreshReport
from fleet.optimizer.refreshing.run import Refresh

TODAY = RecordScope(target_json='{"kind":"llvm"}', device_model="sim", tvm_version="2")
BEFORE = RecordScope(target_json='{"kind":"llvm"}', device_model="sim", tvm_version="1")

Script = Mapping[str, str]
"""Today's programs by schedule: microseconds, and a word that distinguishes equally fast code. Others do not build."""


def artifact(folder: Path, program: str) -> Artifact:
    """Return code that takes as long as it says: "120 first"."""
    content = f"latency_us:{program}".encode()
    digest = digest_of(content)
    path = folder / f"{digest.removeprefix('sha256:')}.so"
    path.write_bytes(content)
    return Artifact(path=path, digest=digest, object_digest=digest)


@dataclass(frozen=True, kw_only=True)
class ScriptedBench:
    """Builds the programs of a script."""

    script: Script
    folder: Path

    async def build(self, workload: StoredWorkload, trace_json: str) -> BuiltCandidate:
        schedule = json.loads(trace_json)
        if schedule not in self.script:
            raise BuildError("the script has no such program")
        return BuiltCandidate(artifact=artifact(self.folder, self.script[schedule]), features=None)

    async def static_trace(self, workload: StoredWorkload) -> str | None:
        schedule = f"static {workload.shash}"
        return json.dumps(schedule) if schedule in self.script else None

    async def lower(self, contents: Mapping[str, bytes]) -> Lowered:
        """A fragment is the hash of its program today."""
        names = {shash: content.decode() for shash, content in contents.items()}
        programs = {
            shash: Workload(shash=name, name=f"kind_{name}", mod_json="{}", weight=1)
            for shash, name in names.items()
            if name
        }
        refusal = Refusal(reason=Reason.CONTENT, message="stored fragment: is cut off")
        return Lowered(programs=programs, refusals={shash: refusal for shash, name in names.items() if not name})

    async def adapt(self, workload: StoredWorkload, seeds: Sequence[Observation]) -> list[Candidate]:
        """ "best a" becomes "best a on b", if the script has that."""
        schedules = [f"{json.loads(seed.trace_json)} on {workload.shash}" for seed in seeds]
        traces = [json.dumps(one) for one in schedules if one in self.script]
        origin = Origin(source=Source.SPACE, knobs="tile=4", is_adapted=True)
        return [Candidate(trace_json=one, digest=trace_digest(one), origin=origin) for one in traces]


class ScriptedChecks:
    """Finds the numbers of programs right, unless their text ends in "wrong"."""

    async def check(
        self, workload: StoredWorkload, programs: Mapping[str, Program], claims: Mapping[str, float]
    ) -> dict[str, Checked]:
        return {name: _checked(one) for name, one in programs.items()}


def _checked(program: Program) -> Checked:
    is_wrong = program.build.artifact.path.read_text().endswith("wrong")
    digest = trace_digest(program.record.trace_json)
    return Checked(program.record.workload, digest, Verdict.WRONG if is_wrong else Verdict.RIGHT, "1 is no 2")


def add_old(
    library: Library,
    folder: Path,
    shash: str,
    schedule: str,
    program: str,
    *,
    then_us: float = 0.0,
    is_kept: bool = True,
    scope: RecordScope = BEFORE,
) -> None:
    """Store a record of the former TVM; its time is that of its code, unless `then_us` is given.

    Args:
        is_kept: with its code.
        scope: its scope.
    """
    library.add_workload(StoredWorkload(shash=shash, name=f"kind_{shash}", mod_json="{}"))
    code, sec = artifact(folder, program), (then_us or float(program.split()[0])) / 1e6
    record = library.add_record(
        Record(
            workload=shash,
            scope=scope,
            trace_json=json.dumps(schedule),
            run_secs=(sec,) * 3,
            artifact_digest=code.digest,
            checked=True,
            making=Making(object_digest=code.object_digest, version="1"),
        )
    )
    best = [one.id for one in library.best_schedules(scope, [shash])]
    library.keep_artifacts({record.id: code} if is_kept else {}, best)


async def refresh(
    path: Path, address: str, script: Script, *, wait_timeout_sec: float = 60, is_dry_run: bool = False
) -> RefreshReport:
    """Refresh a library by a script."""
    with tempfile.TemporaryDirectory() as name, Library.open(path) as library:
        async with aio.connect(address, connect_timeout_sec=60) as client:
            terms = make_terms("simulated", wait_timeout_sec=wait_timeout_sec)
            async with SteadyDevice(client, terms, pauses_sec=(0.1, 0.1), notice=print) as device:
                run = Refresh(
                    library=library,
                    scope=TODAY,
                    bench=ScriptedBench(script=script, folder=Path(name)),
                    folder=Path(name),
                    checks=ScriptedChecks(),
                    device=device,
                    turns=Turns(shares_cores=False),
                    narrate=lambda said: print(said, flush=True),
                    is_dry_run=is_dry_run,
                    rounds_sec=math.inf,
                )
                return await run.run()


if __name__ == "__main__":
    asyncio.run(refresh(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
