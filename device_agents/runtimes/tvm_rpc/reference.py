"""Reference kernel of a device behind a TVM RPC server: a workload that the server provides and times itself.

Nothing can be compiled there and nothing is uploaded: TVM's runtime fills a small tensor with random numbers, always
the same computation, in one thread. Its evaluator takes the time over there, as it does for candidates, so the network
has no part in it. It runs until it no longer gets faster, for idle processors of phones take a while to raise their
clock.

It runs on the processor of the server. Of an OpenCL device that is a witness and not the device itself: on one chip
they share heat and memory, not the clock. TVM's runtime for OpenCL times kernels alone, neither copies nor fills, and
there is no kernel without an artifact.
"""

from __future__ import annotations

import struct
import time
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm_ffi

WITNESSED = ("cpu", "opencl")
"""Device types for which the server's processor is representative. Others are mostly cards with their own sensors."""

_WORK = "tvm.contrib.random.random_fill"
_ELEMENTS = 16 * 1024
"""float32: 64 KiB, which any processor has in its caches."""

_PIECES = 5
_PIECE_MS = 1
"""Minimum time of a piece: the work is repeated until it takes this long."""

_SETTLED = 0.95
"""Share of the first piece's time: if the last piece of a run takes less, the clock is still rising."""

_SETTLE_SEC = 0.1
"""Maximum time to settle. A processor that sleeps most of the time needs about this long to reach its highest clock."""


class RpcReferenceKernel:
    """Times the workload in one session. Must be done before the next session, since it keeps its session open."""

    def __init__(self, ffi: ModuleType, session: tvm_ffi.Module, cpu: tvm_ffi.Device) -> None:
        """Prepare the workload on the processor of the server.

        Args:
            ffi: the module tvm_ffi.
            cpu: the processor as a device of the session.

        Raises:
            AttributeError: the server has no such function.
        """
        session.get_function(_WORK)
        allocate = ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        make_evaluator = ffi.get_global_func("runtime.RPCTimeEvaluator")
        self._tensor = allocate(ffi.Shape((_ELEMENTS,)), ffi.dtype("float32"), cpu, None)
        self._evaluate = make_evaluator(
            session, _WORK, cpu.dlpack_device_type(), cpu.index, 1, _PIECES, _PIECE_MS, 100, 0, 1, 0, ""
        )

    def __call__(self) -> list[float]:
        """Return the time of each piece of a run [s]."""
        give_up_at = time.monotonic() + _SETTLE_SEC
        while True:
            secs = list(struct.unpack(f"@{_PIECES}d", self._evaluate(self._tensor)))
            if secs[-1] > _SETTLED * secs[0] or time.monotonic() > give_up_at:
                return secs
