"""Shared parts of `fleet time` and `fleet run`: the artifact, its arguments, and the device."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fleet.artifacts.artifact import Artifact, check_complete, side_file_of
from fleet.artifacts.elf import HEADER_BYTES
from fleet.cli import completion_values, options
from fleet.client import held
from fleet.client.device import Device
from fleet.domain.measuring import TensorSpec
from fleet.errors import ConfigError, InvalidRequest
from fleet.local.fleet import LocalFleet, drivers_for

ArtifactArgument = Annotated[Path, typer.Argument(help="The artifact: a shared library that TVM built.")]
OnOption = Annotated[
    str | None,
    typer.Option(
        metavar="SELECTOR",
        autocompletion=completion_values.selectors,
        help="Which device: 'cpu', 'kind=cuda', 'name=pi4-03'. Default: the one 'fleet acquire' holds, else "
        "that of 'fleet config show', else 'cpu'.",
    ),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        "--tracker",
        metavar="HOST:PORT",
        help="Tracker of a running fleet. Default: see 'fleet config show'; if none runs, start one for this run.",
    ),
]
FunctionOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The function. Default: the artifact's own, else 'main'.")
]
ArgsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARG",
        help="Its arguments in order: 'float32[256,256]', 'float32[256,256]:out' for an output, or a number; may be "
        "repeated, or several separated by spaces. Default: those in the artifact's side file.",
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(parser=options.seconds_above_zero, metavar="SEC", help="End the run on the device after this time."),
]
WaitOption = Annotated[
    float | None,
    typer.Option(
        parser=options.seconds,
        metavar="SEC",
        help="Give up if no device becomes free. Default: wait for ever; 15 s without a running fleet.",
    ),
]

ArgumentValue = TensorSpec | int | float
_LOCAL_WAIT_SEC = 15.0
_TENSOR = re.compile(r"(?P<dtype>[a-z][a-z0-9_]*)\[(?P<shape>[\d,\s]*)\](?P<out>:out)?")


def parse_arguments(texts: list[str]) -> list[ArgumentValue]:
    """Parse arguments as typed on the command line.

    Raises:
        ConfigError: one is neither a tensor type nor a number.
    """
    # A shape may have spaces after its commas: remove those before splitting at spaces.
    words = [word for text in texts for word in re.sub(r",\s+", ",", text).split()]
    return [_parse_argument(word) for word in words]


def read_artifact(path: Path, function: str | None) -> Artifact:
    """Return the artifact with the requested function.

    Raises:
        ArtifactRefused: the file is truncated.
        ConfigError: the file does not exist, or its side file is malformed.
    """
    try:
        with path.open("rb") as file:
            check_complete(file.read(HEADER_BYTES), path.stat().st_size)
        artifact = Artifact.of_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read the artifact {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"the side file {path}.json is malformed ({error}); build the artifact again") from error
    if function and function != artifact.function:
        artifact = replace(artifact, function=function, args=())
    return artifact


async def check_device(selector: str | None, *, tracker: str | None, connect_timeout_sec: float) -> None:
    """Check that a running fleet has a matching device, before long preparations. `leased_device` acquires it.

    Raises:
        NoMatchingDevice: the fleet has none.
        TrackerUnavailable: it does not answer.
    """
    if tracker is None or (selector is None and held.LEASE in os.environ):
        return
    async with options.connected(tracker, connect_timeout_sec=connect_timeout_sec) as client:
        await client.check_selector(options.selector_or_default(selector))


@contextlib.asynccontextmanager
async def leased_device(
    selector: str | None,
    *,
    tracker: str | None,
    connect_timeout_sec: float,
    wait_timeout_sec: float | None,
    purpose: str,
    prefer: str,
) -> AsyncGenerator[Device, None]:
    """Hold a device of the named fleet, or else of a temporary fleet of this machine."""
    if selector is None and held.LEASE in os.environ:
        async with held.held_device() as device:
            yield device
        return
    selector, address = options.selector_or_default(selector), tracker
    async with contextlib.AsyncExitStack() as stack:
        if address is None:
            # Nobody else uses this fleet: a device that is not free soon is faulted, and the error explains it.
            wait_timeout_sec = wait_timeout_sec or _LOCAL_WAIT_SEC
            options.stderr().print("starting a tracker and an agent for this machine", style="dim")
            local = LocalFleet(agent_drivers=drivers_for(selector))
            address = (await stack.enter_async_context(local)).address
        tell = options.booking_printer()
        connecting = options.connected(address, connect_timeout_sec=connect_timeout_sec, on_booking=tell)
        client = await stack.enter_async_context(connecting)
        yield await stack.enter_async_context(
            client.acquire(
                selector,
                wait_timeout_sec=wait_timeout_sec,
                purpose=purpose,
                prefer=prefer,
                on_queued=options.waiting_printer(selector),
            )
        )


def describe(device: Device) -> str:
    """Return "devices/x (model)"."""
    model = device.inventory.device_model
    return f"{device.name} ({model})" if model else device.name


def _parse_argument(word: str) -> ArgumentValue:
    if match := _TENSOR.fullmatch(word):
        extents = [extent for extent in match["shape"].replace(" ", "").split(",") if extent]
        return TensorSpec(tuple(map(int, extents)), match["dtype"], bool(match["out"]))
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            number = kind(word)
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                raise ConfigError(f"--args {word!r}: a whole number has 64 bits at most")
            return number
    raise ConfigError(f"--args {word!r}: write a tensor like 'float32[256,256]' (':out' after outputs), or a number")


def check_known(artifact: Artifact) -> None:
    """Refuse an artifact with unknown arguments.

    Raises:
        InvalidRequest: neither its side file nor --args names them.
    """
    if artifact.args:
        return
    side_file = side_file_of(artifact.path)
    why = "tells those of another function" if side_file.exists() else "is not there to tell them"
    raise InvalidRequest(
        f"the arguments of {artifact.function!r} in {artifact.path.name} are not known: {side_file.name} {why}; give "
        "them with --args, like --args 'float32[256,256]'"
    )
