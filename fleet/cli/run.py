"""`fleet run ARTIFACT --on SELECTOR`: runs a function of an artifact once and shows its outputs."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fleet.artifacts.artifact import Artifact
from fleet.base.outputs import check_output
from fleet.cli import options, stepping
from fleet.cli.activity import working
from fleet.cli.tables import make_console
from fleet.client.arrays import numpy_dtype
from fleet.domain.measuring import ModuleKind, TensorSpec
from fleet.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    import numpy as np

    from fleet.client.arrays import Array

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_SHOWN_VALUES = 4


@app.command()
def run(
    ctx: typer.Context,
    artifact: stepping.ArtifactArgument,
    on: stepping.OnOption = None,
    prefer: options.PreferOption = "",
    function: stepping.FunctionOption = None,
    args: stepping.ArgsOption = None,
    inputs: Annotated[
        list[Path] | None, typer.Option("--input", metavar="FILE.npy", help="Inputs in order; may be repeated.")
    ] = None,
    random: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Use random numbers for inputs without a file.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Write the outputs here, as out0, out1, ...; where there is one, FILE.npy does, too.",
        ),
    ] = None,
    timeout: stepping.TimeoutOption = 60.0,
    wait_timeout: stepping.WaitOption = None,
    tracker: stepping.FleetOption = None,
    private: options.PrivateOption = False,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
    json_output: options.JsonOption = False,
) -> None:
    """Run a function of an artifact once on a device.

    Inputs come from .npy files or are random. Outputs are summarized, and written to a file for numpy on request.
    Without a running tracker, it starts a tracker and an agent for this machine and stops them at the end.

    Example: fleet run matmul.so --on name=pi4-03 --input a.npy --input b.npy --output c.npz
    """
    loaded = stepping.read_artifact(artifact, function)
    wanted = stepping.parse_arguments(args) if args else list(loaded.args)
    if not wanted:
        stepping.check_known(loaded)
    if output is not None:
        check_output(output)
    arrays = [_read_array(path) for path in inputs or ()]
    sent = fill(wanted, arrays, random, is_vm=loaded.module_kind is ModuleKind.RELAX_VM)
    holding = stepping.leased_device(
        on,
        tracker=options.running_fleet(ctx, tracker, private),
        connect_timeout_sec=connect_timeout,
        wait_timeout_sec=wait_timeout,
        purpose=f"run {artifact.name}",
        prefer=prefer,
    )

    async def work() -> tuple[str, list[Array]]:
        async with holding as device:
            return stepping.describe(device), await device.call(loaded, sent, timeout_sec=timeout)

    with working(f"running {artifact.name}"):
        where, outputs = options.run(work())
    if output is not None:
        _write(output, outputs)
    if json_output:
        options.print_json(result(loaded, where, outputs, output))
    else:
        make_console(is_wide=False).print(table(loaded, where, outputs))


def fill(
    wanted: Sequence[stepping.ArgumentValue], arrays: Sequence[Array], seed: int | None, *, is_vm: bool
) -> list[object]:
    """Return the arguments to send: the given arrays for inputs in order, random ones for the rest.

    Raises:
        InvalidRequest: an array has the wrong type, there are too many, too few without a seed, or one is too large.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    remaining = list(arrays)
    sent: list[object] = []
    for number, value in enumerate(wanted):
        if not isinstance(value, TensorSpec):
            sent.append(value)
        elif value.is_output:
            sent.extend(() if is_vm else (value,))
        elif remaining:
            sent.append(_checked(remaining.pop(0), value, number))
        elif seed is not None:
            try:
                sent.append(random_array(rng, value))
            except (MemoryError, ValueError) as error:
                raise InvalidRequest(f"argument {number} ({value}) cannot be made here: {error}") from error
        else:
            raise InvalidRequest(
                f"argument {number} ({value}) has no value: give it with --input FILE.npy, or --random SEED for all "
                "that have none"
            )
    if remaining:
        count = len(arrays) - len(remaining)
        raise InvalidRequest(f"{len(arrays)} inputs were given, the function takes {count}; mark outputs by ':out'")
    return sent


def random_array(rng: np.random.Generator, spec: TensorSpec) -> Array:
    """Return numbers that do not overflow in sums: floats in [-1, 1), small integers, any bool."""
    import numpy as np

    dtype = numpy_dtype(spec.dtype)
    if dtype.kind in "iub":
        low, high = {"i": (-8, 8), "u": (0, 16), "b": (0, 2)}[dtype.kind]
        return np.asarray(rng.integers(low, high, spec.shape)).astype(dtype)
    return np.asarray(rng.uniform(-1.0, 1.0, spec.shape)).astype(dtype)


def result(artifact: Artifact, where: str, outputs: Sequence[Array], file: Path | None) -> dict[str, object]:
    """Return the outputs, JSON-ready. Equal digests mean equal bits."""
    return {
        "artifact": artifact.digest,
        "function": artifact.function,
        "device": where,
        "outputs": [_summary(array) for array in outputs],
        "file": str(file) if file else None,
    }


def table(artifact: Artifact, where: str, outputs: Sequence[Array]) -> Table:
    """Return the outputs as a table for people."""
    shown = Table(title=f"{artifact.function} on {where}", title_justify="left")
    for column in ("output", "type", "min", "mean", "max", "first values"):
        shown.add_column(column, overflow="fold")
    for index, array in enumerate(outputs):
        summary = _summary(array)
        numbers = [f"{summary[key]:.6g}" if summary[key] is not None else "-" for key in ("min", "mean", "max")]
        first = ", ".join(f"{value:.4g}" for value in array.reshape(-1)[:_SHOWN_VALUES].tolist())
        shown.add_row(f"out{index}", f"{summary['dtype']}{summary['shape']}", *numbers, first)
    return shown


def _summary(array: Array) -> dict[str, object]:
    values = array.astype("float64") if array.size else None
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "min": float(values.min()) if values is not None else None,
        "mean": float(values.mean()) if values is not None else None,
        "max": float(values.max()) if values is not None else None,
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
    }


def _read_array(path: Path) -> Array:
    import numpy as np

    try:
        array: Array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"cannot read the input {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"the input {path} is not a .npy file of numbers: {error}") from error
    except MemoryError as error:  # its header announces more than there is memory, or is damaged
        raise ConfigError(f"the input {path} does not fit into this machine's memory: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"the input {path} holds several arrays; save each as a .npy file of its own")
    return array


def _checked(array: Array, spec: TensorSpec, number: int) -> Array:
    found = TensorSpec(tuple(array.shape), array.dtype.name)
    if (found.shape, found.dtype) != (spec.shape, spec.dtype):
        raise InvalidRequest(f"argument {number}: expected {spec}, the file has {found}")
    return array


def _write(path: Path, outputs: Sequence[Array]) -> None:
    import numpy as np

    is_plain = path.suffix == ".npy"
    if is_plain and len(outputs) != 1:
        raise ConfigError(f"--output {path}: an .npy file holds one array, there are {len(outputs)}; name an .npz file")
    try:
        with path.open("wb") as file:
            if is_plain:
                np.save(file, outputs[0])
                return
            np.savez(file, **{f"out{index}": array for index, array in enumerate(outputs)})  # type: ignore[arg-type]
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
