"""Runs pretend artifacts inside a real worker process: latency, noise, and faults that are as real as the process.

What a candidate does follows from its content, so that it does the same everywhere and every time:

- content that starts with a word of FAULTS (up to a space, a colon or the end) does that: b"crash", b"sleep:2.5",
  b"hang 17";
- else a share `crash_rate` of all contents crash and a share `hang_rate` hang;
- else it runs for `latency_us` times something between 0.5 and 4.5 that its digest decides, give or take `noise`;
  content that starts with b"latency_us:120" runs that long instead.

`Call` copies the first tensor into every output of its size and leaves the others zero.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from device_agents.evaluating import run_schedule
from device_agents.frames import format_frame
from device_agents.runtimes import CandidateFailed
from fleet.v1 import measurement_pb2, session_service_pb2, tensor_pb2
from fleet.wire import duration

_ITEM_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}
_HANG_SEC = 3600.0
_MIB = 1024 * 1024


def preload() -> None:
    """Nothing more to load than this module."""


class SimulatedRuntime:
    """Pretends to run candidates."""

    def __init__(
        self,
        *,
        latency_us: float = 100.0,
        noise: float = 0.01,
        seed: int = 0,
        crash_rate: float = 0.0,
        hang_rate: float = 0.0,
        load_ms: float = 0.0,
        time_scale: float = 1.0,
    ) -> None:
        self._latency_us = latency_us
        self._noise = noise
        self._seed = seed
        self._crash_rate = crash_rate
        self._hang_rate = hang_rate
        self._load_ms = load_ms
        self._time_scale = time_scale

    def measure(self, request: measurement_pb2.MeasureRequest, path: str) -> measurement_pb2.Measurement:
        """Pretend to time a candidate."""
        started = time.perf_counter()
        content = self._load(path)
        loaded = time.perf_counter()
        self._perform_faults(content)
        kernel_sec = self._kernel_sec(content)
        draw = random.Random(f"{self._seed}:{request.artifact_digest}:{request.candidate_id}")

        def time_repeats(*, number: int, repeat: int, min_repeat_ms: int) -> list[float]:
            runs = max(number, round(min_repeat_ms / 1000 / kernel_sec))
            time.sleep(self._time_scale * kernel_sec * runs * repeat)
            return [kernel_sec * max(0.1, draw.gauss(1, self._noise)) for _ in range(repeat)]

        run_secs = run_schedule(request.evaluator, time_repeats)
        ended = time.perf_counter()
        return measurement_pb2.Measurement(
            candidate_id=request.candidate_id,
            run_secs=run_secs,
            clocks=measurement_pb2.Clocks(load=duration(loaded - started), run=duration(ended - loaded)),
        )

    def call(self, request: session_service_pb2.CallRequest, path: str) -> session_service_pb2.CallResponse:
        """Pretend to run a function."""
        content = self._load(path)
        self._perform_faults(content)
        time.sleep(self._time_scale * self._kernel_sec(content))
        given = next((a.tensor.content for a in request.args if a.WhichOneof("kind") == "tensor"), b"")
        outputs = [_output(argument.output, given) for argument in request.args if argument.HasField("output")]
        return session_service_pb2.CallResponse(outputs=outputs)

    def _load(self, path: str) -> bytes:
        time.sleep(self._load_ms / 1000)
        return Path(path).read_bytes()

    def _perform_faults(self, content: bytes) -> None:
        if _BROKEN:
            raise CandidateFailed(measurement_pb2.ERROR_KIND_RUN_FAILED, f"still broken: {_BROKEN[0]}")
        word, _, rest = content[:200].decode(errors="replace").partition(":")
        name = word.split(" ")[0].strip()
        if name in FAULTS:
            FAULTS[name](rest)
        elif self._fraction(content, "crash") < self._crash_rate:
            _crash("")
        elif self._fraction(content, "hang") < self._hang_rate:
            _hang("")

    def _kernel_sec(self, content: bytes) -> float:
        if content.startswith(b"latency_us:"):
            return float(content[len(b"latency_us:") :].split()[0]) / 1e6
        return self._latency_us * (0.5 + 4 * self._fraction(content, "latency")) / 1e6

    def _fraction(self, content: bytes, what: str) -> float:
        """Return a number in 0..1 that follows from content, seed and purpose."""
        digest = hashlib.sha256(f"{self._seed}:{what}:".encode() + content).digest()
        return int.from_bytes(digest[:6], "big") / 2**48


def _output(spec: tensor_pb2.TensorSpec, given: bytes) -> tensor_pb2.Tensor:
    size = _ITEM_BYTES.get(spec.dtype, 8)
    for extent in spec.shape:
        size *= extent
    return tensor_pb2.Tensor(spec=spec, content=given if len(given) == size else bytes(size))


def _crash(_: str) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(_: str) -> None:
    time.sleep(_HANG_SEC)


def _sleep(rest: str) -> None:
    time.sleep(float(rest.split()[0]))


def _exit(rest: str) -> None:
    os._exit(int(rest or "0"))


def _eat_memory(_: str) -> None:
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(4096)) * (16 * _MIB // 4096))


_LEAKED: list[bytearray] = []


def _leak(rest: str) -> None:
    """Keep some MiB for as long as the process lives."""
    _LEAKED.append(bytearray(os.urandom(4096)) * (int(rest.split()[0]) * _MIB // 4096))


def _fill_disk(_: str) -> None:
    number = 0
    while True:
        number += 1
        Path(f"filler-{number}").write_bytes(bytes(_MIB))
        time.sleep(0.001)


def _fill_file(_: str) -> None:
    with Path("filler").open("wb") as file:
        while True:
            file.write(bytes(_MIB))


def _scribble(_: str) -> None:
    """Write a frame that is no message into whatever socket is open: the one to the agent."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if path.is_socket():
                os.write(int(path.name), format_frame(b"\xff\xff\xff"))


def _close_descriptors(_: str) -> None:
    os.closerange(0, 256)


def _leave_child(_: str) -> None:
    """Leave a grandchild in a session of its own, as a daemon does."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(_HANG_SEC)


def _kill_parent(_: str) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(_HANG_SEC)


def _chatter(_: str) -> None:
    while True:
        os.write(1, b"all work and no play makes a dull kernel\n" * 1000)


def _say(rest: str) -> None:
    os.write(1, rest.encode() + b"\n")


def _raise(rest: str) -> None:
    raise CandidateFailed(measurement_pb2.ERROR_KIND_RUN_FAILED, rest or "the kernel raised an error")


def _refuse_arguments(rest: str) -> None:
    raise CandidateFailed(measurement_pb2.ERROR_KIND_BAD_ARGUMENTS, rest or "the arguments do not fit")


def _refuse_load(rest: str) -> None:
    raise CandidateFailed(measurement_pb2.ERROR_KIND_LOAD_FAILED, rest or "the artifact cannot be loaded")


_BROKEN: list[str] = []
"""What broke this process for good, as a CUDA error that stays with the context does."""


def _break_for_good(message: str) -> None:
    _BROKEN.append(message)
    raise CandidateFailed(measurement_pb2.ERROR_KIND_RUN_FAILED, message, is_fatal=True)


FAULTS: dict[str, Callable[[str], None]] = {
    "crash": _crash,
    "abort": lambda _: os.abort(),
    "hang": _hang,
    "sleep": _sleep,
    "exit": _exit,
    "oom": _eat_memory,
    "leak": _leak,
    "disk": _fill_disk,
    "bigfile": _fill_file,
    "close_fds": _close_descriptors,
    "scribble": _scribble,
    "fork": _leave_child,
    "killparent": _kill_parent,
    "chatter": _chatter,
    "say": _say,
    "raise": _raise,
    "bad_arguments": _refuse_arguments,
    "load_failed": _refuse_load,
    "break": _break_for_good,
}
"""What a pretend artifact can ask for by its first word."""
