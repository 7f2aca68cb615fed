"""One TIR program as a model of one operator: a file by `tvm.ir.save_json` of a PrimFunc or of a module with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.base.digests import digest_of
from fleet.errors import ImportFailed, InvalidRequest
from fleet.models.importing.importer import Frontend, Importer, ToRelax
from fleet.models.importing.shapes import Shapes
from fleet.models.importing.value import Model, ModelFormat

if TYPE_CHECKING:
    from tvm.ir import IRModule

PROGRAM_SUFFIX = ".json"

_REFUSAL = "is one program, not a model: fleet tune and fleet build take it"


def read_program(
    path: Path, wanted: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> list[Model]:
    """Read a program.

    Raises:
        ImportFailed: there is no such file, or it is no program.
        InvalidRequest: a shape or random weights are asked for; a program has its shapes, and no weights.
    """
    check_unchanged(path, wanted, batch_size, random_weights_seed)
    try:
        content = path.read_bytes()
        one_function(content.decode(), str(path))
    except (OSError, UnicodeDecodeError, InvalidRequest) as error:
        raise ImportFailed(f"cannot read {path}: {error}") from error
    return [
        Model(
            title=path.stem,
            format=ModelFormat.PROGRAM,
            digest=digest_of(content),
            input_names=(),
            inputs=(),
            output_names=(),
            stored=content,
        )
    ]


def check_unchanged(
    path: Path, wanted: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> None:
    """Raise InvalidRequest if shapes or weights are asked for, other than a program's own."""
    if any(wanted) or batch_size is not None or random_weights_seed is not None:
        raise InvalidRequest(f"{path} is no model: its shapes are in it, and it has no weights")


def no_relax(refusal: str) -> ToRelax:
    """Return the conversion of a format without a whole model, which always raises ImportFailed."""

    def refuse(model: Model, *, unrolls: bool = False) -> IRModule:
        raise ImportFailed(refusal)

    return refuse


def one_function(text: str, source: str) -> IRModule:
    """Return the module with one TIR function from a JSON text.

    Raises:
        InvalidRequest: it holds something else.
    """
    import tvm
    from tvm.ir import IRModule
    from tvm.tirx import PrimFunc

    try:
        found = tvm.ir.load_json(text)
    except Exception as error:  # TVM may raise any error on damaged files
        raise InvalidRequest(f"{source} is not a module as tvm.ir.save_json writes it") from error
    mod = IRModule({"main": found}) if isinstance(found, PrimFunc) else found
    functions = list(mod.functions.values()) if isinstance(mod, IRModule) else []
    if len(functions) != 1 or not isinstance(functions[0], PrimFunc):
        raise InvalidRequest(f"{source} is not a TIR module with one function")
    return mod


PROGRAM = Importer(
    forms=(f"*{PROGRAM_SUFFIX}",),
    suffix=PROGRAM_SUFFIX,
    read=read_program,
    refusal=_REFUSAL,
    frontend=Frontend(format=ModelFormat.PROGRAM, to_relax=no_relax(_REFUSAL)),
)
