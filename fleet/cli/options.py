"""What all commands share: options, settings, output."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import typer
from google.protobuf import json_format
from google.protobuf.message import Message
from rich.console import Console

from fleet.v1 import lease_pb2

T = TypeVar("T")

TrackerOption = Annotated[
    str | None,
    typer.Option("--tracker", metavar="HOST:PORT", help="The tracker. Default: $FLEET_TRACKER, else 127.0.0.1:9290."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data as JSON.")]
ConnectTimeoutOption = Annotated[
    float, typer.Option("--connect-timeout", metavar="SEC", help="Give up when no tracker answers for this long.")
]

PreferOption = Annotated[
    str,
    typer.Option(
        metavar="SELECTOR",
        help="Of the free devices that will do, rather one that matches this: 'bitstream=sha256:...'. Never waits.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The global options."""

    tracker: str | None = None
    output: Literal["table", "json"] = "table"
    log_level: str | None = None


def settings(ctx: typer.Context) -> Settings:
    """Return the global options given before the command."""
    found = ctx.find_root().obj
    return found if isinstance(found, Settings) else Settings()


def tracker_address(ctx: typer.Context, given: str | None) -> str | None:
    """Return the tracker named by the command, else by the global option; None: let the client look."""
    return given or settings(ctx).tracker


def wants_json(ctx: typer.Context, given: bool) -> bool:
    """Tell whether data goes out as JSON."""
    return given or settings(ctx).output == "json"


def print_json(value: object) -> None:
    """Print data on stdout."""
    print(json.dumps(value, indent=2))


def message_dict(message: Message) -> dict[str, Any]:
    """Return a message as JSON data with the names of the protos, defaults included."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def stderr() -> Console:
    """Where messages for people go; data goes to stdout."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def waiting_printer(what: str) -> Callable[[lease_pb2.PendingRequest], None]:
    """Return what tells on stderr, whenever it changes, that a request for a device waits, and why."""
    console = stderr()
    shown = ""

    def on_queued(request: lease_pb2.PendingRequest) -> None:
        nonlocal shown
        place = "next in the queue" if request.position == 0 else f"{request.position} before us"
        text = f"waiting for {what}: {place}; {request.reason or 'no reason given'}"
        if text != shown:
            shown = text
            console.print(text, markup=False)

    return on_queued


def cancel_on(*numbers: signal.Signals) -> None:
    """Have these signals cancel the current task, so that it gives back what it holds."""
    task = asyncio.current_task()
    if task is None:
        return
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's asynchronous work. Ctrl-C cancels it, waits for its clean-up and raises KeyboardInterrupt."""
    return asyncio.run(work)
