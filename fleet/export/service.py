"""Exports a model: compiles it with the library's schedules, and writes the shipped archive.

Equal models, options and records give equal bytes. TVM never runs in this process: import, compilation and reference
outputs are tasks of the build pool.
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from cross.compile.gpu_code import check_tools
from cross.compile.toolchains import find_linker
from cross.pool.build_pool import BuildPool
from cross.targets.target import Target
from fleet.artifacts.artifact import Artifact
from fleet.artifacts.fit import needed_features
from fleet.base.digests import digest_of
from fleet.base.outputs import check_output
from fleet.base.quantities import count_text
from fleet.base.scratch import scratch_dir
from fleet.base.tasks import started
from fleet.building.pool import run_within
from fleet.building.turns import Turns
from fleet.checking.numerics import Array, answer_tolerances
from fleet.checking.spread import find_spread
from fleet.domain.scope import ANY_SCOPE, ScopeFilter
from fleet.domain.tvm_versions import check_versions, tvm_version
from fleet.domain.workload import Workload, terms_of_model
from fleet.errors import ArtifactRefused, BuildError, ConfigError, InvalidRequest
from fleet.export import MODULES
from fleet.export.answers import Answers, find_answers
from fleet.export.choice import Choice, choose
from fleet.library import Library
from fleet.models.confined import having, reading
from fleet.models.importing.shapes import Shapes
from fleet.models.model import Model, check_exists, load_model
from fleet.packs.lookup import open_packs
from fleet.runtime.agreement import Agreement
from fleet.runtime.manifest import MOST_THREADS, Affinity, Check, FileFacts, Manifest, TensorType, Variant
from fleet.runtime.model import load
from fleet.runtime.package import write_archive
from fleet.workloads.extract import compile_model, extract

logger = logging.getLogger(__name__)

_TASK_TIMEOUT_SEC = 600.0
_LIBRARY = "library.so"
_DEVICE_TYPES = {"llvm": "cpu", "cuda": "cuda", "rocm": "rocm", "opencl": "opencl"}
"""Device of each kind of target in TVM's runtime; others have no runtime, or cannot be built here."""

_Checked: TypeAlias = "tuple[Answers, tuple[float, ...] | None]"
"""Reference answers, and their rounding spread if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Model, target and path of an export."""

    model: Path
    target: Target
    output: Path
    library: str | None = None
    """URL of the library; None: the user's own."""

    within: ScopeFilter = ANY_SCOPE
    """Records to choose from, see `ScopeFilter.for_build`."""

    is_untuned: bool = False
    """Leave the library alone."""

    shapes: Sequence[Shapes] = ()
    """Sets of shapes of inputs with open dimensions, which the program is for; empty: none is open."""

    input_batch_size: int | None = None
    """Size of every input's open first dimension."""

    random_weights: bool = False
    seed: int = 0
    """Seed of the inputs to check with, and of random weights."""

    threads: int | None = None
    """None: as many as the target has cores."""

    affinity: Affinity = Affinity.CORES
    runs_it: bool = False
    """Run the stored inputs and compare the answers, if the file is for this machine's processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An archive that was written."""

    path: Path
    digest: str
    """ "sha256:<hex>" of the archive."""

    size_bytes: int
    workloads: int
    """Number of the model's operators that could have a record."""

    manifest: Manifest
    agreement: Agreement | None = None
    """Comparison of its answers with the stored ones; None if it was not run."""

    trials: int = 0
    """Number of trials of these operators in the library, on the hardware of the used records."""

    loop_nests: tuple[str, ...] = ()
    """Parts without a schedule, on processors: functions, blocks of them, and operators."""

    @property
    def tuned(self) -> int:
        """Number of operators with a schedule found by a trial."""
        return sum(not record.is_static and not record.pack for record in self.manifest.records)

    @property
    def static(self) -> int:
        """Number of operators with a static schedule and a record of its time."""
        return sum(record.is_static and not record.pack for record in self.manifest.records)

    @property
    def of_packs(self) -> int:
        """Number of operators with a schedule of a pack."""
        return sum(bool(record.pack) for record in self.manifest.records)

    @property
    def unmeasured(self) -> int:
        """Number of operators without a checked record. They get their static schedule, unless it failed."""
        return self.workloads - len(self.manifest.records)


async def export(options: ExportOptions, narrate: Callable[[str], None] = lambda _: None) -> Exported:
    """Export a model.

    Args:
        narrate: called with the current activity, for people.

    Raises:
        ConfigError: a target that cannot work, no linker for it, or a folder that does not exist.
        ImportFailed: no ONNX model, or one with an operator that TVM cannot import.
        BuildError: it does not compile or link.
        InvalidRequest: the target is no processor, or a shape does not fit the model.
    """
    _check(options)
    with ExitStack() as stack:
        out_dir = stack.enter_context(scratch_dir("export"))
        # The compiler has a worker of its own: it keeps the lowered model between two tasks.
        compiler, checker = (BuildPool(1, target=options.target, modules=MODULES) for _ in range(2))
        for pool in (compiler, checker):
            stack.callback(pool.shutdown, wait=False)
            pool.start()
        async with Turns.of_this_machine().building():
            narrate(f"importing {options.model.name}")
            model = await run_within(
                checker,
                _TASK_TIMEOUT_SEC,
                reading(load_model, options.model),
                options.model,
                shapes=options.shapes,
                batch_size=options.input_batch_size,
                random_weights_seed=options.seed if options.random_weights else None,
            )
            model = await asyncio.to_thread(model.stored_in, stack.enter_context(scratch_dir("model")))
            async with started(_all_answers(checker, model, options.seed), name="answers") as answering:
                extracting, compiling = having(extract, model), having(compile_model, model, writable=out_dir)
                workloads = await run_within(
                    compiler, _TASK_TIMEOUT_SEC, extracting, model, options.target, is_compiled_next=True
                )
                choice = Choice() if options.is_untuned else await asyncio.to_thread(_chosen, options, workloads)
                narrate(f"compiling {model.title} with {len(choice.records)} records for {len(workloads)} operators")
                given = (model, options.target, dict(choice.traces), out_dir)
                artifact, answers = await asyncio.gather(
                    run_within(compiler, _TASK_TIMEOUT_SEC, compiling, *given), answering
                )
            narrate(f"writing {options.output.name}")
            manifest = await asyncio.to_thread(
                _write, options, model, artifact, answers, choice, terms_of_model(workloads)
            )
            agreement = (
                await _run(checker, options.output) if options.runs_it and manifest.device_type == "cpu" else None
            )
    return Exported(
        path=options.output,
        digest=await asyncio.to_thread(digest_of, options.output),
        size_bytes=options.output.stat().st_size,
        workloads=len(workloads),
        manifest=manifest,
        agreement=agreement,
        trials=choice.trials,
        loop_nests=artifact.loop_nests,
    )


async def _all_answers(pool: BuildPool, model: Model, seed: int) -> list[_Checked]:
    return await asyncio.gather(*(_answers(pool, one, seed) for one in model.variants))


async def _answers(pool: BuildPool, model: Model, seed: int) -> _Checked:
    found = await run_within(pool, _TASK_TIMEOUT_SEC, having(find_answers, model), model, seed)
    spread = await find_spread(pool, model, seed=found.seed, style=found.style, largest_index=found.largest_index)
    return found, spread


async def _run(pool: BuildPool, path: Path) -> Agreement | None:
    """Run an exported model in a worker; return None if it is for another machine."""
    try:
        return await run_within(pool, _TASK_TIMEOUT_SEC, run_here, path)
    except (ArtifactRefused, ConfigError):
        return None
    except BuildError as error:
        return Agreement(max_abs_error=math.inf, allowed=0.0, problem=f"it does not run: {error}")


def run_here(path: Path) -> Agreement:
    """Run an exported model in this process and return the verdict of `fleet serve-check`."""
    return load(path).check()


def _check(options: ExportOptions) -> None:
    check_versions()
    check_exists(options.model)
    if options.threads is not None and not 1 <= options.threads <= MOST_THREADS:
        raise InvalidRequest(f"a model runs on 1 to {MOST_THREADS} threads, not {options.threads}")
    check_output(options.output)
    kind = options.target.kind
    if kind not in _DEVICE_TYPES:
        raise InvalidRequest(f"exported models run on {', '.join(_DEVICE_TYPES.values())}; {kind} is none of them")
    check_tools(options.target)
    find_linker(options.target)


def _chosen(options: ExportOptions, workloads: list[Workload]) -> Choice:
    within = options.within.for_build(options.target.json, tvm_version())
    with Library.open_to_read(options.library) as library, open_packs() as packs:
        choice = choose(library, workloads, within, packs)
    for line in filter(None, (choice.unproven, choice.packs)):
        logger.warning(line)
    if choice.older:
        logger.warning("%s left out, since they are too old", count_text(choice.older, "record"))
    return choice


def _write(
    options: ExportOptions,
    model: Model,
    artifact: Artifact,
    answers: Sequence[_Checked],
    choice: Choice,
    terms: int,
) -> Manifest:
    files: dict[str, Path | bytes] = {_LIBRARY: artifact.path}
    variants = []
    for index, (given, spread) in enumerate(answers):
        variant, arrays = _variant(model, given, spread, terms, f"check/{index}" if index else "check")
        variants.append(variant)
        files |= arrays
    target = options.target
    host = _host(target)
    manifest = Manifest(
        title=model.title,
        model_digest=model.digest,
        target=dict(target.options),
        device_type=_DEVICE_TYPES[target.kind],
        machine=target.arch,
        cpu_features=tuple(sorted(needed_features(host, target.arch))),
        tvm_version=artifact.tvm_version,
        threads=options.threads or _cores(host),
        affinity=options.affinity,
        device_model=choice.device_model,
        inputs=variants[0].inputs,
        outputs=variants[0].outputs,
        records=choice.records,
        library=_LIBRARY,
        files={name: _facts(content) for name, content in files.items()},
        check=variants[0].check,
        others=tuple(variants[1:]),
    )
    write_archive(options.output, manifest, files)
    return manifest


def _variant(
    model: Model, answers: Answers, spread: tuple[float, ...] | None, terms: int, folder: str
) -> tuple[Variant, dict[str, bytes]]:
    """Return the manifest's entry of one set of shapes, and the files with its inputs and answers."""
    inputs = {f"{folder}/input{index}.npy": _npy(array) for index, array in enumerate(answers.inputs)}
    outputs = {f"{folder}/output{index}.npy": _npy(array) for index, array in enumerate(answers.outputs)}
    variant = Variant(
        inputs=tuple(map(_tensor_type, model.input_names, answers.inputs)),
        outputs=tuple(map(_tensor_type, answers.output_names, answers.outputs)),
        check=Check(
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            tolerances=answer_tolerances(answers.outputs, terms=terms, roundings=model.roundings, spread=spread),
            tolerances_by="sums" if spread is None else "float64",
            reference=answers.reference,
            seed=answers.seed,
            weakness=answers.weakness.text if answers.weakness else "",
        ),
    )
    return variant, inputs | outputs


def _host(target: Target) -> Mapping[str, object]:
    """Return the target of the code that runs on the processor."""
    host = target.options.get("host")
    if target.is_processor:
        return target.options
    return host if isinstance(host, dict) else {"kind": "llvm"}


def _cores(target: Mapping[str, object]) -> int:
    cores = target.get("num-cores")
    return cores if isinstance(cores, int) and cores > 0 else os.cpu_count() or 1


def _tensor_type(name: str, array: Array) -> TensorType:
    return TensorType(name=name, shape=tuple(array.shape), dtype=array.dtype.name)


def _npy(array: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, np.asarray(array, order="C"), allow_pickle=False)
    return content.getvalue()


def _facts(content: Path | bytes) -> FileFacts:
    size_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
    return FileFacts(sha256=digest_of(content).removeprefix("sha256:"), size_bytes=size_bytes)
