"""What `fleet time` and `fleet run` share: the artifact with its arguments, and a device to use it on."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

import fleet.aio
from fleet.artifacts import Artifact
from fleet.cli import options
from fleet.client import held
from fleet.client.device import Device
from fleet.client.local import LocalFleet, agent_args_for
from fleet.errors import ConfigError, InvalidRequest
from fleet.measuring import TensorSpec

ArtifactArgument = Annotated[Path, typer.Argument(help="The artifact: a shared library that TVM built.")]
OnOption = Annotated[
    str | None,
    typer.Option(
        metavar="SELECTOR",
        help="Which device: 'cpu', 'kind=cuda', 'name=pi4-03'. Default: what `fleet acquire` holds, else 'cpu'.",
    ),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        "--tracker", metavar="HOST:PORT", help="A running fleet. Default: one for this machine alone, for this run."
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
        "repeated, or several in one, apart by spaces. Default: those that the artifact's side file tells.",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option(metavar="SEC", min=0.001, help="End the run on the device after this time.")
]
WaitOption = Annotated[
    float | None,
    typer.Option(
        metavar="SEC", help="Give up when no device comes free. Default: wait for ever; 15 s without a running fleet."
    ),
]

ArgumentValue = TensorSpec | int | float
_LOCAL_WAIT_SEC = 15.0
_TENSOR = re.compile(r"(?P<dtype>[a-z][a-z0-9_]*)\[(?P<shape>[\d,\s]*)\](?P<out>:out)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which device, and from whom."""

    selector: str | None
    tracker: str | None
    connect_timeout_sec: float
    wait_timeout_sec: float | None
    purpose: str
    prefer: str = ""


def parse_arguments(texts: list[str]) -> list[ArgumentValue]:
    """Read arguments as people write them.

    Raises:
        ConfigError: one is neither a tensor type nor a number.
    """
    # A shape may have spaces after its commas: they are taken out before the rest is split at spaces.
    words = [word for text in texts for word in re.sub(r",\s+", ",", text).split()]
    return [_parse_argument(word) for word in words]


def read_artifact(path: Path, function: str | None) -> Artifact:
    """Return the artifact with the function that was asked for.

    Raises:
        ConfigError: there is no such file, or its side file is malformed.
    """
    try:
        artifact = Artifact.of_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read the artifact {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"the side file {path}.json is malformed ({error}); build the artifact again") from error
    if function and function != artifact.function:
        artifact = replace(artifact, function=function, args=())
    return artifact


@contextlib.asynccontextmanager
async def leased_device(wish: Wish) -> AsyncGenerator[Device, None]:
    """Hold a device: of the fleet that is named, else of one for this machine alone."""
    if wish.selector is None and held.LEASE in os.environ:
        async with held.held_device() as device:
            yield device
        return
    selector, wait_timeout_sec = wish.selector or "cpu", wish.wait_timeout_sec
    async with contextlib.AsyncExitStack() as stack:
        address = wish.tracker
        if address is None:
            # Nobody else holds a device of this fleet: one that is not free soon is faulted, and the error says how.
            wait_timeout_sec = wait_timeout_sec or _LOCAL_WAIT_SEC
            options.stderr().print("starting a tracker and an agent for this machine", style="dim")
            local = LocalFleet(agent_args=agent_args_for(selector))
            address = (await stack.enter_async_context(local)).address
        client = await stack.enter_async_context(
            fleet.aio.connect(address, connect_timeout_sec=wish.connect_timeout_sec)
        )
        yield await stack.enter_async_context(
            client.acquire(
                selector,
                wait_timeout_sec=wait_timeout_sec,
                purpose=wish.purpose,
                prefer=wish.prefer,
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
            return kind(word)
    raise ConfigError(f"--args {word!r}: write a tensor like 'float32[256,256]' (':out' behind outputs), or a number")


def check_known(artifact: Artifact) -> None:
    """Refuse an artifact whose arguments nobody told.

    Raises:
        InvalidRequest: neither its side file nor --args says them.
    """
    if not artifact.args:
        raise InvalidRequest(
            f"the arguments of {artifact.function!r} in {artifact.path.name} are not known: there is no side file "
            f"{artifact.path.name}.json that tells them; give them with --args, like --args 'float32[256,256]'"
        )
