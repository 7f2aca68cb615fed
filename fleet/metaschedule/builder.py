"""`FleetBuilder`: builds MetaSchedule's candidates in warm worker processes, with the fastest linker installed.

`LocalBuilder` starts its workers anew every round, and each imports TVM with the intrinsics of every GPU; that is most
of the time of a stock tuning run. Here workers are forked from a warm process and stay.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.builder import BuilderInput, BuilderResult, PyBuilder

from cross.pool.build_pool import BuildPool
from fleet.base.scratch import scratch_dir
from fleet.errors import BuildError, FleetError
from fleet.metaschedule.build_task import build_module


@derived_object
class FleetBuilder(PyBuilder):  # type: ignore[misc]
    """Builds candidates into shared libraries. A candidate that crashes or hangs the compiler fails alone.

    Artifacts are temporary: MetaSchedule's RemoveBuildArtifact callback deletes each after its measurement, and the
    rest goes when the builder is closed or the process ends.
    """

    def __init__(self, *, max_workers: int | None = None, timeout_sec: float = 30.0) -> None:
        """Store the arguments: workers start with the first build.

        Args:
            max_workers: worker processes; one per core when None.
            timeout_sec: a build that takes longer is killed.
        """
        super().__init__()
        self._pool = BuildPool(max_workers, timeout_sec=timeout_sec)
        self.directory: Path | None = None
        """Folder of needed artifacts; None before the first build."""

        self._numbers = itertools.count()
        self._scratch = ExitStack()
        self.close = weakref.finalize(self, _clean_up, self._pool, self._scratch)
        """End the workers and delete all artifacts. Idempotent."""

    def build(self, build_inputs: Sequence[BuilderInput]) -> list[BuilderResult]:
        """Build all candidates. An error becomes the result of its candidate."""
        return [_result(future) for future in [self._submit(given) for given in build_inputs]]

    def _submit(self, given: BuilderInput) -> Future[str]:
        # One directory each, because RemoveBuildArtifact deletes an artifact's whole directory.
        out_dir = self._root() / str(next(self._numbers))
        out_dir.mkdir()
        return self._pool.submit(build_module, tvm.ir.save_json(given.mod), str(given.target), str(out_dir))

    def _root(self) -> Path:
        if self.directory is None:
            self.directory = self._scratch.enter_context(scratch_dir("metaschedule"))
        return self.directory


def _result(future: Future[str]) -> BuilderResult:
    try:
        return BuilderResult(future.result(), None)
    except BuildError as error:
        return BuilderResult(None, f"{getattr(error, 'kind', 'BUILD_FAILED')}: {error}")
    except FleetError as error:
        return BuilderResult(None, str(error))


def _clean_up(pool: BuildPool, scratch: ExitStack) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    scratch.close()
