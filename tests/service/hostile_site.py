"""An agent, a tracker and holders in namespaces of their own, where hostile kernels may do anything.

    unshare ... python -m tests.service.hostile_site FOLDER JAIL

It prints one JSON object: the outcome of each attack. FOLDER holds kernels.so, made of hostile_kernels.c. Everything
here runs below one process, the first of its pid namespace: when it ends, all of it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from fleet.base.digests import digest_of
from fleet.testing import eventually
from fleet.v1 import measurement_pb2, session_service_pb2
from tests.programs import alive, is_alive
from tests.service.agent_bench import DEVICE, Holder, StubTracker, admit, request_for
from tests.service.tensors import spec

_MIB = 1024 * 1024
_USURPED_TRIALS = 80
_YAML = "devices: [{{driver: cpu, name: sim}}]\nmemory_limit_bytes: {memory}\ndisk_limit_bytes: {disk}\njail: {jail}\n"


class Site:
    """One agent after the other, on one state directory."""

    def __init__(self, folder: Path, jail: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        key = folder / "tracker.key"
        key.write_text("secret")
        key.chmod(0o600)
        private = self.state / "private"
        self.secrets = [key, self.state / "identity.pem", private / "epochs.json"]
        self.kernels = (folder / "kernels.so").read_bytes()
        self.tracker = StubTracker()
        self.epoch = 0
        self.agent: subprocess.Popen[str] | None = None
        self.port = 0
        (folder / "agent.yaml").write_text(_YAML.format(memory=256 * _MIB, disk=32 * _MIB, jail=jail))

    async def start(self) -> None:
        admit(self.state)
        command = [sys.executable, "-m", "device_agents", "--tracker", self.tracker.address]
        environment = {
            "TVM_HOSTILE_STORE": str(self.state / "artifacts"),
            "TVM_HOSTILE_FILES": ":".join(map(str, self.secrets)),
            "FLEET_LIBRARY": "postgresql://fleet:s3cret@db/fleet",
            "SECRET_OF_OPERATOR": "s3cret",
            "DATABASE": "postgresql://fleet:s3cret@db/fleet",
            "TVM_MIRROR": "https://me:s3cret@mirror/",
        }
        self.agent = subprocess.Popen(  # noqa: ASYNC220 - read in a thread
            [*command, "--config", self.folder / "agent.yaml", "--state-dir", self.state],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self.agent.stdout is not None
        line = await asyncio.to_thread(self.agent.stdout.readline)
        self.port = int(line.partition("127.0.0.1:")[2].partition(",")[0])

    def holder(self) -> Holder:
        self.epoch += 1
        return Holder(self.port, self.tracker.token(self.epoch))

    async def attack(self, name: str, timeout_sec: float = 30.0) -> tuple[Holder, str, int]:
        """Call a hostile function under a new lease; return its holder, the kind of error, and its output."""
        holder = self.holder()
        digest = await holder.put(self.kernels)
        request = session_service_pb2.CallRequest(
            artifact_digest=digest, function=name, args=[spec("output", 1, dtype="int32")]
        )
        request.timeout.FromNanoseconds(int(timeout_sec * 1e9))
        response = await holder.call(request)
        kind = measurement_pb2.ErrorKind.Name(response.error).removeprefix("ERROR_KIND_")
        said = int.from_bytes(response.outputs[0].content, "little", signed=True) if response.outputs else -1
        return holder, kind, said

    async def next_holder_is_served(self) -> bool:
        """Tell whether another lease runs a kernel that gives the right answer."""
        holder, kind, said = await self.attack("say_harmless")
        await holder.close()
        return (kind, said) == ("UNSPECIFIED", 7)

    def survivors(self) -> list[int]:
        """Return the processes that hostile kernels named."""
        hostile = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "hostile"]
        return [process.pid for process in alive(hostile)]

    def peak_mib(self) -> int:
        """Return the agent's peak memory so far."""
        return self._mib("VmHWM:")

    def resident_mib(self) -> int:
        """Return the agent's resident memory."""
        return self._mib("VmRSS:")

    def _mib(self, field: str) -> int:
        assert self.agent is not None
        status = Path(f"/proc/{self.agent.pid}/status").read_text()
        return int(status.partition(field)[2].split()[0]) // 1024


async def outlive(site: Site) -> dict[str, object]:
    holder, kind, _ = await site.attack("outlive", 2.0)
    await holder.close_session()
    return {"kind": kind, "served": await site.next_holder_is_served(), "survivors": site.survivors()}


async def stop_all(site: Site) -> dict[str, object]:
    holder = site.holder()
    digest = await holder.put(site.kernels)
    request = request_for(digest, function="stop_all", args=[spec("output", 1, dtype="int32")], timeout_sec=60.0)
    running = asyncio.create_task(holder.measure([request]))
    await eventually(lambda: len(site.survivors()) == 2, timeout_sec=30)
    await holder.close_session()
    survivors = site.survivors()
    await asyncio.gather(running, return_exceptions=True)
    served = await site.next_holder_is_served()
    await eventually(lambda: site.tracker.reports[DEVICE].is_healthy)
    return {"served": served, "survivors": survivors}


async def stop_all_and_kill_agent(site: Site) -> dict[str, object]:
    holder = site.holder()
    digest = await holder.put(site.kernels)
    request = request_for(
        digest, function="stop_all_and_kill_agent", args=[spec("output", 1, dtype="int32")], timeout_sec=60.0
    )
    running = asyncio.create_task(holder.measure([request]))
    await eventually(site.survivors, timeout_sec=30)
    assert site.agent is not None
    site.agent.kill()  # where the kernel could not
    await asyncio.to_thread(site.agent.communicate)
    await asyncio.gather(running, return_exceptions=True)
    await holder.close()
    await site.start()
    return {"served": await site.next_holder_is_served(), "survivors": site.survivors()}


async def overwrite(site: Site) -> dict[str, object]:
    digest = digest_of(site.kernels)
    holder, kind, changed = await site.attack("overwrite")
    await holder.close_session()
    next_holder = site.holder()
    missing = await next_holder.find_missing([digest])
    await next_holder.close()
    return {"kind": kind, "changed": changed, "is_refused": missing == [digest]}


async def open_secrets(site: Site) -> dict[str, object]:
    holder, kind, opened = await site.attack("open_secrets")
    await holder.close()
    return {"kind": kind, "opened": opened, "there": sum(path.exists() for path in site.secrets)}


async def large_answer(site: Site) -> dict[str, object]:
    before = site.peak_mib()
    holder, kind, _ = await site.attack("answer_with_empty_outputs")
    await holder.close()
    return {"kind": kind, "grown_mib": site.peak_mib() - before}


async def grow_later(site: Site) -> dict[str, object]:
    return await _ended_between_candidates(site, "grow_later")


async def fill_disk_later(site: Site) -> dict[str, object]:
    return await _ended_between_candidates(site, "fill_disk_later")


async def _ended_between_candidates(site: Site, name: str) -> dict[str, object]:
    holder, kind, _ = await site.attack(name)
    worker = await holder.open()
    await eventually(lambda: not is_alive(worker), timeout_sec=30)
    await holder.close()
    return {"kind": kind, "served": await site.next_holder_is_served()}


async def look_around(site: Site) -> dict[str, object]:
    """Count the resources that a kernel can reach, see `look_around` in hostile_kernels.c."""
    holder, kind, found = await site.attack("look_around")
    await holder.close()
    return {"kind": kind, "found": found}


async def find_secrets(site: Site) -> dict[str, object]:
    """Search for the operator's secrets, see `find_secrets` in hostile_kernels.c."""
    holder, kind, found = await site.attack("find_secrets")
    await holder.close()
    return {"kind": kind, "found": found}


async def usurp(site: Site) -> dict[str, object]:
    """Forge a worker's responses for many batches, then return the measurements of the next holder."""
    holder = site.holder()
    digest = await holder.put(site.kernels)
    output = [spec("output", 1, dtype="int32")]
    attack = [request_for(digest, function="usurp", args=output, ends_batch=True)]
    forged = await holder.measure(attack * _USURPED_TRIALS)
    await holder.close_session()
    next_holder = site.holder()
    honest = request_for(await next_holder.put(site.kernels), function="say_harmless", args=output, ends_batch=True)
    results = await next_holder.measure([honest] * 5)
    await next_holder.close()
    return {
        "forged": sum(list(result.run_secs) == [1e-9] for result in forged),
        "longest_drift": max(
            (
                float(disturbance.text.split()[2])
                for result in results
                for disturbance in result.provenance.disturbances
                if disturbance.kind == measurement_pb2.DISTURBANCE_KIND_REFERENCE_DRIFT
            ),
            default=1.0,
        ),
        "shortest_reference_sec": min(result.provenance.after.reference_sec for result in [*forged, *results]),
    }


async def leave_shared_memory(site: Site) -> dict[str, object]:
    holder, kind, _ = await site.attack("leave_shared_memory")
    await holder.close_session()
    return {"kind": kind, "left": await asyncio.to_thread(left_in_memory)}


def left_in_memory() -> list[str]:
    """Return the names of shared memory that kernels have left behind."""
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [path.name for path in Path("/dev/shm").iterdir()] + segments


ATTACKS: dict[str, Callable[[Site], Awaitable[dict[str, object]]]] = {
    attack.__name__: attack
    for attack in (
        open_secrets,
        look_around,
        find_secrets,
        overwrite,
        large_answer,
        leave_shared_memory,
        usurp,
        grow_later,
        fill_disk_later,
        outlive,
        stop_all,
        stop_all_and_kill_agent,
    )
}


async def main(folder: Path, jail: str) -> dict[str, object]:
    site = Site(folder, jail)
    await site.tracker.start()
    await site.start()
    found: dict[str, object] = {}
    for name, attack in ATTACKS.items():
        started = time.monotonic()
        try:
            found[name] = await attack(site)
        except Exception as error:  # noqa: BLE001 - what became of this attack; the others follow
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        sys.stderr.write(f"{name}: {time.monotonic() - started:.2f} s {found[name]}\n")
    assert site.agent is not None
    site.agent.terminate()
    await asyncio.to_thread(site.agent.communicate)
    await site.tracker.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))))
