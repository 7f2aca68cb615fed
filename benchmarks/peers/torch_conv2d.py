"""PyTorch's conv2d as a process: a JSON file of layers in, one JSON line of times out. Needs only torch.

python benchmarks/peers/torch_conv2d.py LAYERS.json
> {"us": [...], "least_us": [...], "tf32_us": [...] or null, "version": "2.13.0", "device": "NVIDIA H200", ...}
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

_REPEAT_SEC = 0.05
"""Each repeat lasts at least this long, as in our own timer."""


def main(path: str) -> None:
    """Time all layers."""
    request = json.loads(Path(path).read_text())
    is_gpu = request["device"] == "cuda"
    if is_gpu and not torch.cuda.is_available():
        raise SystemExit(f"this PyTorch ({torch.__version__}) sees no GPU; name another with --torch-python")
    torch.backends.cudnn.benchmark = True
    layers = [_operator(layer, request["device"]) for layer in request["layers"]]
    found = _times(layers, is_gpu, request["repeats"], tf32=False)
    with_tf32 = _times(layers, is_gpu, request["repeats"], tf32=True) if is_gpu else None
    answer = {
        "us": [statistics.median(times) for times in found],
        "least_us": [min(times) for times in found],
        "tf32_us": [statistics.median(times) for times in with_tf32] if with_tf32 else None,
        "version": torch.__version__,
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "backend": f"cuDNN {torch.backends.cudnn.version()}" if is_gpu else "oneDNN",
        "driver": _driver() if is_gpu else "",
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(answer), flush=True)


def _operator(layer: dict[str, int], device: str) -> Callable[[], torch.Tensor]:
    data = torch.randn(1, layer["channels"], layer["size"], layer["size"], device=device)
    filters = torch.randn(layer["filters"], layer["channels"], layer["kernel"], layer["kernel"], device=device)

    def run() -> torch.Tensor:
        return torch.nn.functional.conv2d(data, filters, stride=layer["stride"], padding=layer["padding"])

    return run


def _times(operators: list[Callable[[], torch.Tensor]], is_gpu: bool, repeats: int, *, tf32: bool) -> list[list[float]]:
    """Return the times of one call of each operator in its repeats, in microseconds."""
    torch.backends.cudnn.allow_tf32 = tf32
    time_once = _time_on_gpu if is_gpu else _time_on_cpu
    found = []
    with torch.inference_mode():
        for operator in operators:
            for _ in range(3):
                operator()
            number = max(1, int(_REPEAT_SEC / max(time_once(operator, 3), 1e-7)))
            found.append([time_once(operator, number) * 1e6 for _ in range(repeats)])
    return found


def _time_on_cpu(operator: Callable[[], torch.Tensor], number: int) -> float:
    started = time.perf_counter()
    for _ in range(number):
        operator()
    return (time.perf_counter() - started) / number


def _time_on_gpu(operator: Callable[[], torch.Tensor], number: int) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(number):
        operator()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / 1000 / number


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.split("\n")[0].strip()


if __name__ == "__main__":
    main(sys.argv[1])
