"""GPUs for tests: a compiled stand-in for NVML that pynvml loads as it loads NVIDIA's, and its scripts."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

H200 = """gpus 1
driver 580.65.06
cuda 13000
0.name NVIDIA H200
0.uuid GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77
0.bus 00000000:3B:00.0
0.capability 9.0
0.memory 150754820096
0.free 150123446272
0.cores 16896
0.temp 34
0.clock 345
0.max_clock 1980
0.power 75123
0.throttle 0x1
"""
"""An idle H200, in the form of nvidia-smi's output."""

A100_MIG = """gpus 2
driver 550.90.07
cuda 12040
0.name NVIDIA A100-SXM4-40GB
0.uuid GPU-30a6b1f7-7a1c-4b8c-9d2e-111111111111
0.bus 00000000:07:00.0
0.capability 8.0
0.memory 42949672960
0.cores 6912
0.temp 41
0.clock 1410
0.max_clock 1410
0.power 91000
0.throttle 0x0
0.mig 2
0.mig0.name NVIDIA A100-SXM4-40GB MIG 1g.5gb
0.mig0.uuid MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f
0.mig0.memory 5100273664
0.mig0.sms 14
0.mig1.name NVIDIA A100-SXM4-40GB MIG 3g.20gb
0.mig1.uuid MIG-3f19d9b5-8d3e-5a02-9a39-2c1f3d3a3a7b
0.mig1.memory 20937965568
0.mig1.sms 42
1.name NVIDIA A100-SXM4-40GB
1.uuid GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5
1.bus 00000000:0F:00.0
1.capability 8.0
1.memory 42949672960
1.cores 6912
1.temp 38
1.clock 210
1.max_clock 1410
1.power 52000
1.throttle 0x1
"""
"""Two A100, the first with MIG and two instances."""


@dataclass(frozen=True)
class FakeNvml:
    """The library, and the file with its script."""

    library: Path
    script: Path

    def play(self, text: str) -> None:
        fresh = self.script.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.script)  # atomically: other threads read it

    def change(self, key: str, value: object) -> None:
        """Append a setting; a later line wins."""
        self.play(f"{self.script.read_text()}{key} {value}\n")

    def hang(self) -> None:
        """Block all queries until `answer`."""
        self.change("hang", 1)

    def answer(self) -> None:
        """Answer again, including pending queries."""
        self.play(self.script.read_text().replace("hang 1\n", ""))


def compile_library(source: str, output: Path) -> Path:
    """Compile a small C library, by zig where the machine has no compiler."""
    compiler = shutil.which("gcc")
    command = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    path = output.with_suffix(".c")
    path.write_text(source)
    subprocess.run([*command, "-shared", "-fPIC", "-O1", "-w", "-o", str(output), str(path)], check=True)
    return output


def build(folder: Path) -> FakeNvml:
    """Compile the library, named as the real one so that processes of a test find it by LD_LIBRARY_PATH."""
    library = compile_library(Path(__file__).with_name("fake_nvml.c").read_text(), folder / "libnvidia-ml.so.1")
    return FakeNvml(library, folder / "gpus.txt")


@contextmanager
def playing(fake: FakeNvml, script: str = H200) -> Iterator[FakeNvml]:
    """Show these GPUs to this process."""
    fake.play(script)
    with forgotten_library(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_NVML", str(fake.script))
        yield fake


@contextmanager
def forgotten_library() -> Iterator[None]:
    """Reset pynvml before and after the block: it keeps one library for the whole process."""
    import pynvml

    importlib.reload(pynvml)
    try:
        yield
    finally:
        importlib.reload(pynvml)
