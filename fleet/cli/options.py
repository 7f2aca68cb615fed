"""Shared parts of all commands: options, settings, output."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console

from fleet.base.config import at_home
from fleet.base.metrics import HELP as METRICS_HELP
from fleet.base.network import is_answered
from fleet.base.settings import Source, look_up
from fleet.base.signals import ENDING, on_signals
from fleet.cli import completion_values
from fleet.cli.activity import working
from fleet.cli.json_out import print_document
from fleet.cli.terminal import CleanConsole
from fleet.domain.bookings import Booking, notice_text
from fleet.domain.leases import LONGEST_SEC, PendingRequest
from fleet.domain.selectors import parse_selector
from fleet.errors import ConfigError, FleetError

if TYPE_CHECKING:
    from cross.compile.cache import BuildCache
    from fleet.client.aio import Fleet
    from fleet.client.identity_calls import IdentityCalls

T = TypeVar("T")

_TAG = re.compile(r"[\w.][\w./-]{0,59}")
_WORKERS_PER_CORE = 4
_LEAST_BOUND = 16
_WORKER_BYTES = 256 * 1024**2
"""Memory of a worker that compiles a large program. 62 idle workers took 8 s to start on two cores."""


def seconds(text: str | float) -> float:
    """Parse a duration on the command line; a usage error names the allowed range."""
    sec = _number(text)
    if not 0 <= sec <= LONGEST_SEC:
        raise typer.BadParameter(f"{text} is not in the range 0 to {LONGEST_SEC} seconds")
    return sec


def seconds_above_zero(text: str | float) -> float:
    """Parse a duration that must not be zero."""
    sec = seconds(text)
    if sec == 0:
        raise typer.BadParameter(f"{text} is not above zero")
    return sec


def tag_word(text: str) -> str:
    """Return a tag of a job. Anything but a short word is a usage error."""
    if not _TAG.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is no tag; write up to 60 letters, digits, '.', '_', '-' and '/'")
    return text


def finite(value: float | None) -> float | None:
    """Refuse nan and infinities: not all versions of typer exclude nan from ranges."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def _number(text: str | float) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number of seconds") from None


def _in_json(ctx: typer.Context, given: bool) -> bool:
    """Tell whether output is JSON: by --json here or before the subcommand, else by --format or its setting."""
    is_asked = given or _of_group(ctx, "json_output")
    return is_asked or look_up("format", settings(ctx).output).value == "json"


def _tracker(ctx: typer.Context, given: str | None) -> str | None:
    """Return the tracker given here, before the subcommand, or to `fleet` itself."""
    found = _of_group(ctx, "tracker") if given is None else given
    return settings(ctx).tracker if found is None else found


def _of_group(ctx: typer.Context, option: str) -> Any:
    """Return an option of the command group; None if it has no such option."""
    return None if ctx.parent is None else ctx.parent.params.get(option)


TrackerOption = Annotated[
    str | None,
    typer.Option(
        "--tracker",
        metavar="HOST:PORT",
        callback=_tracker,
        help="The tracker. Default: $FLEET_TRACKER, else that of 'fleet config show', else 127.0.0.1:9290.",
    ),
]


PrivateOption = Annotated[
    bool,
    typer.Option(
        "--private", help="Start a tracker and an agent for this run, even if a tracker runs on this machine."
    ),
]


def _device_name(given: str) -> str:
    return f"devices/{given.removeprefix('devices/')}"


def _bounded_workers(count: int | None) -> int | None:
    """Refuse more build processes than the machine's cores and memory can use."""
    import psutil  # takes 7 ms, and most commands do not need it

    cores, free_bytes = os.cpu_count() or 1, psutil.virtual_memory().available
    most = max(1, min(max(_LEAST_BOUND, _WORKERS_PER_CORE * cores), free_bytes // _WORKER_BYTES))
    if count is not None and count > most:
        raise typer.BadParameter(
            f"{count} build processes are too many for {cores} cores and {free_bytes / 1e9:.1f} GB of free memory; "
            f"give {most} at most, or leave it out for one per core"
        )
    return count


def _library(given: str | None) -> str | None:
    return None if given is None else look_up("library", given).value


JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON.", callback=_in_json)]
MetricsOption = Annotated[str | None, typer.Option("--metrics", metavar="HOST:PORT", help=METRICS_HELP)]
ConnectTimeoutOption = Annotated[
    float,
    typer.Option(
        "--connect-timeout", parser=seconds, metavar="SEC", help="Give up when no tracker answers for this long."
    ),
]

WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, callback=_bounded_workers, metavar="N", help="Build processes. Default: one per core."),
]
LibraryOption = Annotated[
    str | None,
    typer.Option(
        "--library",
        metavar="URL",
        callback=_library,
        help="The library of records: a SQLite file, or postgresql://host/database. Default: $FLEET_LIBRARY, else that "
        "of 'fleet config show', else yours, in the data directory.",
    ),
]
DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="URL",
        envvar="FLEET_DASK",
        help="Search and build on the builders of this Dask scheduler: tls://HOST:PORT. Default: on this machine.",
    ),
]
DaskCertsOption = Annotated[
    Path | None,
    typer.Option(
        "--dask-certs",
        metavar="FOLDER",
        envvar="FLEET_DASK_CERTS",
        help="Certificates of the cluster, see 'fleet builder certs'. Default: the ones your scheduler made.",
    ),
]
BuildCacheOption = Annotated[
    Path | None,
    typer.Option(
        "--build-cache",
        metavar="FOLDER",
        envvar="FLEET_BUILD_CACHE",
        help="Cache of built candidates; several optimizers may share it. Default: no cache.",
    ),
]
BuildCacheGbOption = Annotated[
    float,
    typer.Option(
        "--build-cache-gb",
        min=0.01,
        callback=finite,
        metavar="GB",
        help="What was not used for longest goes beyond this.",
    ),
]
DEFAULT_CACHE_GB = 4.0
"""Default limit of a cache, copied, since an import would load the cache in every command."""
PreferOption = Annotated[
    str,
    typer.Option(
        metavar="SELECTOR",
        autocompletion=completion_values.selectors,
        help="Among free devices that will do, take one that matches this: 'bitstream=sha256:...'. Never waits.",
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=SHAPE",
        help="Shape of an input: data=1,3,224,224. Open dimensions of one name get one size. Several for one input: "
        "one program for all of them.",
    ),
]
BatchSizeOption = Annotated[
    int | None, typer.Option("--batch-size", min=1, metavar="N", help="Size of every input's open first dimension.")
]
ModelArgument = Annotated[Path, typer.Argument(help="The model: *.onnx, *.pt2, *.keras, *.tflite or hf:FOLDER.")]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="A board ('fleet targets') or TVM target as JSON.",
        autocompletion=completion_values.boards,
    ),
]
DeviceModelOption = Annotated[
    str | None,
    typer.Option(
        "--device-model",
        metavar="MODEL",
        help="Take the best schedules measured on this device model, whatever its exact target.",
    ),
]
UntunedOption = Annotated[bool, typer.Option("--untuned", help="Do not look in the library.")]
DeviceArgument = Annotated[
    str,
    typer.Argument(
        help="The device, with or without 'devices/'.", callback=_device_name, autocompletion=completion_values.devices
    ),
]
"""Its full name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The global options."""

    tracker: str | None = None
    output: Literal["table", "json"] | None = None
    log_level: str | None = None


def settings(ctx: typer.Context) -> Settings:
    """Return the global options given before the command."""
    found = ctx.find_root().obj
    return found if isinstance(found, Settings) else Settings()


def tracker_address(given: str | None) -> str:
    """Return the tracker's address: that of the command line, else of `fleet.base.settings`."""
    return look_up("tracker", given).value


def running_fleet(ctx: typer.Context, given: str | None, is_private: bool) -> str | None:
    """Return the tracker for a command that can start a fleet of its own, or None if it should start one.

    Prefers the named tracker, then one on this machine that this account has joined, which is reported on stderr.

    Args:
        is_private: --private was given: start a fleet.

    Raises:
        ConfigError: --private and --tracker contradict each other.
    """
    if is_private:
        if given is not None:
            raise ConfigError("--private starts a fleet for this run, --tracker names a running one; give one of them")
        return None
    from fleet.identity.store import CredentialStore  # takes 4 ms

    setting = look_up("tracker", settings(ctx).tracker if given is None else given)
    if setting.asked is not None or not is_answered(setting.value):
        return setting.asked
    if CredentialStore().find(setting.value) is None:
        stderr().print(
            f"another account's tracker runs at {setting.value}; its jobs may disturb times measured here",
            style="yellow",
        )
        return None
    stderr().print(f"using the tracker at {setting.value}; --private starts a fleet for this run instead")
    return setting.value


def selector_or_default(given: str | None) -> str:
    """Return the selector of the device to use.

    Raises:
        InvalidRequest: it cannot be read.
        ConfigError: the one of the environment or the file cannot.
    """
    found = look_up("selector", given)
    try:
        parse_selector(found.value)
    except FleetError as error:
        if found.source is Source.FLAG:
            raise
        raise ConfigError(f"{found.where}: {error}") from error
    return found.value


def print_json(value: Mapping[str, object]) -> None:
    """Print one object on stdout, with the version of its schema; see `fleet.cli.json_out`."""
    print_document(value)


def stderr() -> Console:
    """Return the console for messages to people; data goes to stdout."""
    return CleanConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)


def waiting_printer(what: str) -> Callable[[PendingRequest], None]:
    """Return a callback that prints a request's position in the queue, and the reason, to stderr whenever they
    change.
    """
    console = stderr()
    shown = ""

    def on_queued(request: PendingRequest) -> None:
        nonlocal shown
        place = "next in the queue" if request.position == 0 else f"{request.position} before us"
        text = f"waiting for {what}: {place}; {request.reason or 'no reason given'}"
        if text != shown:
            shown = text
            console.print(text)

    return on_queued


def booking_printer() -> Callable[[Booking], None]:
    """Return a callback that prints to stderr that a booking cannot be kept any more, or can again."""
    console = stderr()
    return lambda booking: console.print(notice_text(booking, time.time()), style="yellow")


@contextlib.asynccontextmanager
async def connected(
    address: str | None, *, connect_timeout_sec: float, on_booking: Callable[[Booking], None] | None = None
) -> AsyncGenerator[Fleet, None]:
    """Provide a client of a tracker, and show progress while connecting.

    Args:
        on_booking: called with bookings of this account that cannot be kept any more, or can again.
    """
    from fleet.client import aio  # slow to import, and most commands need no client

    async with contextlib.AsyncExitStack() as stack:
        with working(f"connecting to the tracker at {address or look_up('tracker').value}"):
            client = await stack.enter_async_context(aio.connect(address, connect_timeout_sec=connect_timeout_sec))
        if on_booking is not None:
            client.watch_bookings(on_booking)
        yield client


def query_tracker(given: str | None, connect_timeout_sec: float, query: Callable[[Fleet], Awaitable[T]]) -> T:
    """Return the result of one query by a client of a tracker."""

    async def work() -> T:
        async with connected(tracker_address(given), connect_timeout_sec=connect_timeout_sec) as client:
            return await query(client)

    return run(work())


def query_identities(given: str | None, query: Callable[[IdentityCalls], Awaitable[T]]) -> T:
    """Return the result of one query about the members of a tracker's fleet."""
    from fleet.client.identity_calls import IdentityCalls  # slow to import

    async def work() -> T:
        async with IdentityCalls(tracker_address(given)) as calls:
            return await query(calls)

    return run(work())


def run(work: Coroutine[object, object, T]) -> T:
    """Run a command's asynchronous work. Ctrl-C cancels it, waits for its clean-up and raises KeyboardInterrupt."""
    return asyncio.run(work)


def run_until_signal(work: Coroutine[object, object, T]) -> T:
    """Run a command's asynchronous work. SIGTERM and SIGHUP cancel it, so that it releases its lease.

    Raises:
        typer.Exit: after a signal, with exit code 143 for SIGTERM and 129 for SIGHUP.
    """
    received: list[signal.Signals] = []
    try:
        return run(_cancelled_by(work, (signal.SIGTERM, signal.SIGHUP), received))
    except asyncio.CancelledError:
        if not received:
            raise
        code = 128 + received[0]
        raise typer.Exit(code) from None


def run_service(work: Coroutine[object, object, None]) -> None:
    """Run a service until a signal cancels it, Ctrl-C included. Its exit code is 0 then."""
    try:
        run(_cancelled_by(work, ENDING, []))
    except asyncio.CancelledError:
        stderr().print("stopped")


async def _cancelled_by(
    work: Coroutine[object, object, T], numbers: Sequence[signal.Signals], received: list[signal.Signals]
) -> T:
    task = asyncio.current_task()

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        if task is not None:
            task.cancel()

    for number in numbers:
        on_signals([number], cancel, number)
    return await work


def build_cache(folder: Path | None, size_gb: float) -> BuildCache | None:
    """Return the cache configured by these options."""
    if folder is None:
        return None
    from cross.compile.cache import BuildCache

    path = at_home(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot keep a build cache in {path}: {error.strerror}; name another folder") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot keep a build cache in {path}: the folder is read-only, or not yours")
    return BuildCache(folder=str(path), max_bytes=round(size_gb * 1e9))
