"""An agent by a relay, beside the same agent dialled directly: upload rate, connection, and the relay's memory.

Uploads of 100 MB alternate between two agents on this machine, one of which clients reach by the relay only. Over a
link with 20 ms round trip between the agents and everything else, the time to open a session is measured. At last
clients that do not read are sent bytes until nothing moves, and the relay's memory is compared with before.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

if not __package__:  # run as a file: python benchmarks/relay.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.common import JsonObject
from benchmarks.delay_link import DelayLink, LinkUnavailable
from benchmarks.processes import Process, python
from fleet.base.network import host_and_port
from fleet.base.sockets import connect_socket
from fleet.client.connection import account_credentials
from fleet.identity.certificates import make_key, own_key_id
from fleet.identity.credentials import agent_name
from fleet.testing.relay_peers import client_hello, registered_agent
from fleet.wire import joining

_SIDES = ("direct", "relayed")
_UPLOAD_BYTES, _QUICK_UPLOAD_BYTES = 100_000_000, 4_000_000
_OPENS, _QUICK_OPENS = 9, 1
_ROUND_TRIP_MS = 20.0
_STALLED, _QUICK_STALLED = 8, 2
_PORTION_BYTES = 1024 * 1024
_STALL_SEC = 2.0
"""A sender that could not send a portion in this time has filled all buffers."""

_LEAST_RATIO, _MOST_GROWN_MB = 0.8, 20.0
_NOWHERE = "127.0.0.1:9"
"""An address where nothing listens, so that clients use the relay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Hosts and command prefixes of the agents and of everything else."""

    host: str = "127.0.0.1"
    agent_host: str = "127.0.0.1"
    here: Callable[[Sequence[str]], list[str]] = list
    there: Callable[[Sequence[str]], list[str]] = list


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Processes of a site."""

    tracker: str
    relay: str
    relay_pid: int
    client: Process


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = common.make_parser("relay", __doc__ or "", rounds=5).parse_args(argv)
    rounds = options.rounds or (1 if options.quick else 5)
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        with _running(Site(), Path(directory)) as running:
            size_bytes = _QUICK_UPLOAD_BYTES if options.quick else _UPLOAD_BYTES
            started_sec = _cpu_sec(running.relay_pid)
            rates = _rates(running, rounds, size_bytes)
            relay_cpu_sec = _cpu_sec(running.relay_pid) - started_sec
            stalled = _QUICK_STALLED if options.quick else _STALLED
            grown_mb = asyncio.run(rss_growth_mb(running.tracker, running.relay, running.relay_pid, stalled))
        connect = _connect_over_link(Path(directory), _QUICK_OPENS if options.quick else _OPENS)
    figures = {
        "name": "relay",
        "peer": rates["direct"],
        "ours": rates["relayed"],
        "unit": "MB/s",
        "rate_ratio": round(rates["relayed"] / rates["direct"], 3),
        "relay_cpu_sec_per_gb": round(relay_cpu_sec / (rounds * size_bytes) * 1e9, 1),
        "connect": connect,
        "rss_growth_mb": round(grown_mb, 1),
        "stalled_clients": stalled,
        "rounds": rounds,
        "quick": options.quick,
        "machine": machine,
    }
    _print(figures, common.doubts(machine, quick=options.quick))
    common.print_json(figures, wanted=options.json)
    is_good = figures["rate_ratio"] >= _LEAST_RATIO and grown_mb <= _MOST_GROWN_MB
    return 0 if is_good or options.quick else 1


@contextlib.contextmanager
def _running(site: Site, folder: Path) -> Iterator[Running]:
    """Run a tracker, a relay, two agents and a client."""
    folder = Path(tempfile.mkdtemp(dir=folder))

    def start(name: str, command: Sequence[str]) -> Process:
        return stack.enter_context(Process(command, folder / f"{name}.log"))

    with contextlib.ExitStack() as stack:
        listen = ("--host", site.host, "--allow-network", "--port", 0)
        words = python("fleet.tracker", *listen, "--no-discovery", "--state-dir", folder / "tracker")
        tracker = start("tracker", site.here(words)).wait_for(r"tracker listening on (\S+)")[1]
        relay = start("relay", site.here(python("fleet", "relay", "serve", "--tracker", tracker, *listen)))
        relay_address = relay.wait_for(r"relay listening on (\S+)")[1]
        for side in _SIDES:
            config = folder / f"{side}.yaml"
            hidden = f"relay: {relay_address}\nadvertise_address: {_NOWHERE}\n" if side == "relayed" else ""
            config.write_text(f"jail: none\n{hidden}devices:\n- {{driver: simulated, name: {side}, time_scale: 0}}\n")
            words = python("device_agents", "--tracker", tracker, "--config", config, "--state-dir", folder / side)
            words += ["--host", site.agent_host, "--allow-network"]
            agent = start(side, site.there(words))
            agent.wait_for(r"agent listening on \S+ serving")
        client = start("client", site.here(python("benchmarks.relay_client", tracker)))
        client.wait_for("ready")
        yield Running(tracker=tracker, relay=relay_address, relay_pid=relay.pid, client=client)


def _rates(running: Running, rounds: int, size_bytes: int) -> dict[str, float]:
    """Return the median rates of uploads [MB/s]."""

    def upload(side: str) -> Callable[[int], float]:
        def run(number: int) -> float:
            answer = running.client.ask({"device": side, "upload_bytes": size_bytes})
            return size_bytes / 1e6 / float(answer["sec"])

        return run

    found = common.alternate({side: upload(side) for side in _SIDES}, rounds)
    return {side: round(statistics.median(rates), 1) for side, rates in found.items()}


def _cpu_sec(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _connect_over_link(folder: Path, opens: int) -> JsonObject:
    """Return the times to open a session over a slow link, or the reason for their absence."""
    try:
        with DelayLink(round_trip_ms=_ROUND_TRIP_MS) as link:
            site = Site(
                host=link.near.address, agent_host=link.far.address, here=link.near.command, there=link.far.command
            )
            with _running(site, folder) as running:
                for side in _SIDES:  # the first session of an agent starts more than a worker
                    running.client.ask({"device": side, "opens": 1})
                found = common.alternate({side: _opener(running, side) for side in _SIDES}, opens)
    except LinkUnavailable as error:
        return {"left_out": str(error)}
    direct_ms, relayed_ms = (statistics.median(found[side]) for side in _SIDES)
    return {
        "round_trip_ms": _ROUND_TRIP_MS,
        "direct_ms": round(direct_ms, 1),
        "relayed_ms": round(relayed_ms, 1),
        "more_round_trips": round((relayed_ms - direct_ms) / _ROUND_TRIP_MS, 2),
    }


def _opener(running: Running, side: str) -> Callable[[int], float]:
    """Return a function that opens a session and returns the time [ms]."""
    return lambda number: float(running.client.ask({"device": side, "opens": 1})["open_secs"][0]) * 1e3


async def rss_growth_mb(tracker: str, relay: str, relay_pid: int, count: int) -> float:
    """Return the growth of a relay's memory while an agent sends to clients that do not read."""
    account, key = (await account_credentials(tracker))(), make_key()
    proof = await joining.admit_own(tracker, account, name="sender", key_pem=key)
    hello, process = client_hello(agent_name(own_key_id(key))), psutil.Process(relay_pid)
    stalled = asyncio.Semaphore(0)

    async def send(connection: socket.socket, first_bytes: bytes) -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(_STALL_SEC):
                    await asyncio.get_running_loop().sock_sendall(connection, bytes(_PORTION_BYTES))
        stalled.release()
        await asyncio.Event().wait()

    async with registered_agent(relay, proof, send):
        before_bytes = process.memory_info().rss
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                client = stack.enter_context(await connect_socket(*host_and_port(relay)))
                await asyncio.get_running_loop().sock_sendall(client, hello)
            for _ in range(count):
                await stalled.acquire()
            return float(process.memory_info().rss - before_bytes) / 1e6


def _print(figures: JsonObject, notes: Sequence[str]) -> None:
    connect = figures["connect"]
    rows = [
        ("upload of 100 MB [MB/s]", str(figures["peer"]), str(figures["ours"]), str(figures["rate_ratio"])),
        (
            f"session over {_ROUND_TRIP_MS:g} ms [ms]",
            str(connect.get("direct_ms", "-")),
            str(connect.get("relayed_ms", "-")),
            f"{connect['more_round_trips']} round trips more" if "more_round_trips" in connect else "-",
        ),
        ("memory, clients that do not read [MB]", "-", str(figures["rss_growth_mb"]), f"{_MOST_GROWN_MB:g} at most"),
    ]
    left_out = [f"no link: {connect['left_out']}"] if "left_out" in connect else []
    common.print_table("an agent by a relay", ("", "direct", "relay", ""), rows, [*notes, *left_out])


if __name__ == "__main__":
    sys.exit(main())
