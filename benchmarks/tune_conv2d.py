"""The conv2d layers of ResNet-18, tuned by `fleet tune`, beside PyTorch's: cuDNN on a GPU, oneDNN on a CPU.

    python -m benchmarks.tune_conv2d --on kind=cuda --trials-per-layer 256
    python -m benchmarks.tune_conv2d --on cpu --quick --torch-python ~/torch/bin/python

One input of 224 x 224, float32, NCHW, no bias. Ours is the best time that the tuning run stored, with checked numbers;
PyTorch's is the median of repeats on the same machine right after, warmed up, with cuDNN's own search for the fastest
algorithm (torch.backends.cudnn.benchmark) and without TF32, which ours does not use either; with TF32 it is a column of
its own. PyTorch is no dependency of ours: `--torch-python` names an interpreter that has it.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if not __package__:  # run as a file: python benchmarks/tune_conv2d.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from benchmarks.common import JsonObject
from benchmarks.processes import Process, ProcessFailed, python
from fleet.graph.winograd_algorithm import OUTPUTS, TAPS

_TRIALS, _QUICK_TRIALS = 128, 4
_RUN_TIMEOUT_SEC = 6 * 3600.0
_TORCH_TIMEOUT_SEC = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One conv2d, and the number of equal layers in the network."""

    channels: int
    size: int
    """Side of the input, which is square."""

    filters: int
    kernel: int
    stride: int
    count: int

    @property
    def name(self) -> str:
        """ "64x56x56, 128 3x3/2"."""
        return f"{self.channels}x{self.size}x{self.size}, {self.filters} {self.kernel}x{self.kernel}/{self.stride}"

    @property
    def shapes(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Shapes of the input and of the filters: channels first, channels last, and by Winograd's algorithm."""
        channels, size, filters, kernel = self.channels, self.size, self.filters, self.kernel
        sides = [kernel, *(outputs + TAPS - 1 for outputs in OUTPUTS if kernel == TAPS and self.stride == 1)]
        return (
            ((1, channels, size, size), (filters, channels, kernel, kernel)),
            *(((1, size, size, channels), (side, side, channels, filters)) for side in sides),
        )

    @property
    def padding(self) -> int:
        """Zeros on each side of the input."""
        return self.kernel // 2


def _layer(channels: int, size: int, filters: int, kernel: int, stride: int, count: int) -> Layer:
    return Layer(channels=channels, size=size, filters=filters, kernel=kernel, stride=stride, count=count)


RESNET18 = (
    _layer(3, 224, 64, 7, 2, 1),
    _layer(64, 56, 64, 3, 1, 4),
    _layer(64, 56, 128, 3, 2, 1),
    _layer(64, 56, 128, 1, 2, 1),
    _layer(128, 28, 128, 3, 1, 3),
    _layer(128, 28, 256, 3, 2, 1),
    _layer(128, 28, 256, 1, 2, 1),
    _layer(256, 14, 256, 3, 1, 3),
    _layer(256, 14, 512, 3, 2, 1),
    _layer(256, 14, 512, 1, 2, 1),
    _layer(512, 7, 512, 3, 1, 3),
)
"""He et al., Deep Residual Learning for Image Recognition, table 1: all 20 convolutions, 11 of them different."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = common.make_parser("tune_conv2d", __doc__ or "", rounds=1)
    parser.add_argument("--on", default="cpu", metavar="SELECTOR", help="which device (default: cpu)")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="a running fleet (default: one for this machine alone)")
    parser.add_argument(
        "--trials-per-layer", type=int, default=None, help=f"default: {_TRIALS}, quick: {_QUICK_TRIALS}"
    )
    parser.add_argument("--layers", type=int, default=len(RESNET18), help="only the first so many")
    parser.add_argument("--library", type=Path, help="keep the records here and go on from them")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch")
    options = parser.parse_args(argv)
    trials = options.trials_per_layer or (_QUICK_TRIALS if options.quick else _TRIALS)
    layers = RESNET18[: options.layers]
    is_gpu = "cuda" in options.on
    try:
        check_torch(options.torch_python, is_gpu=is_gpu)
    except ProcessFailed as error:
        parser.error(str(error))
    machine = common.machine()
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as directory:
        scratch = Path(directory)
        model = write_model(scratch / "resnet18_conv2d.onnx", layers)
        report = _tune(model, scratch, options, per_layer=trials, layer_count=len(layers))
        ours = best_by_layer(report, workload_names(model, layers))
        torch = run_torch(layers, scratch, options.torch_python, is_gpu=is_gpu, quick=options.quick)
    figures = _figures(layers, ours, torch, report)
    command = shlex.join(["python", "-m", "benchmarks.tune_conv2d", *(sys.argv[1:] if argv is None else argv)])
    _print(figures, command, trials=trials, quick=options.quick, machine=machine)
    common.print_json(
        {**figures, "trials_per_layer": trials, "quick": options.quick, "machine": machine, "command": command},
        wanted=options.json,
    )
    return 0


def check_torch(interpreter: str, *, is_gpu: bool) -> None:
    """Make sure that the peer runs, before hours of tuning.

    Raises:
        ProcessFailed: the interpreter has no PyTorch, or its PyTorch sees no GPU.
    """
    ask = "import torch; print(torch.cuda.is_available())"
    try:
        done = subprocess.run([interpreter, "-c", ask], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProcessFailed(f"--torch-python {interpreter} does not run: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProcessFailed(f"{interpreter} has no PyTorch ({last}); name an interpreter that has with --torch-python")
    if is_gpu and done.stdout.strip() != "True":
        raise ProcessFailed(f"the PyTorch of {interpreter} sees no GPU; name another with --torch-python")


def run_torch(
    layers: Sequence[Layer],
    scratch: Path,
    interpreter: str,
    *,
    is_gpu: bool = False,
    quick: bool = False,
    threads: int | None = None,
) -> JsonObject:
    """Return PyTorch's times of the layers, from `benchmarks/peers/torch_conv2d.py`.

    Args:
        threads: on a processor; None: its own default.

    Raises:
        ProcessFailed: it failed, or took too long.
    """
    request = {
        "device": "cuda" if is_gpu else "cpu",
        "repeats": 3 if quick else 15,
        "layers": [{**asdict(layer), "padding": layer.padding} for layer in layers],
    }
    (scratch / "layers.json").write_text(json.dumps(request))
    script = Path(__file__).with_name("peers") / "torch_conv2d.py"
    common.say(f"timing PyTorch on {request['device']}")
    command = [interpreter, str(script), str(scratch / "layers.json")]
    environment = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    with Process(command, scratch / "torch.log", environment=environment) as process:
        answer: JsonObject = json.loads(process.finish(_TORCH_TIMEOUT_SEC)[-1])
    return answer


def write_model(path: Path, layers: Sequence[Layer]) -> Path:
    """Write an ONNX file in which each layer stands for itself, with filters of random numbers."""
    import numpy as np
    from onnx import TensorProto, checker, helper, numpy_helper, save_model

    rng = np.random.default_rng(0)
    nodes, inputs, outputs, weights = [], [], [], []
    for number, layer in enumerate(layers):
        data, filters = layer.shapes[0]
        out = [1, layer.filters, *[math.ceil(layer.size / layer.stride)] * 2]
        inputs.append(helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, data))
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, out))
        weights.append(numpy_helper.from_array(rng.standard_normal(filters, dtype=np.float32), f"w{number}"))
        nodes.append(
            helper.make_node(
                *("Conv", [f"x{number}", f"w{number}"], [f"y{number}"]),
                name=f"conv{number}",
                kernel_shape=[layer.kernel] * 2,
                strides=[layer.stride] * 2,
                pads=[layer.padding] * 4,
            )
        )
    graph = helper.make_graph(nodes, "resnet18_conv2d", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save_model(model, str(path))
    return path


def workload_names(model: Path, layers: Sequence[Layer]) -> dict[str, Layer]:
    """Return the layer of each of the model's workloads, matched by the shapes of its arguments."""
    from cross.targets.target import host_target
    from fleet.models.model import load_model
    from fleet.workloads.extract import extract

    by_shapes = {shapes: layer for layer in layers for shapes in layer.shapes}
    found = {}
    for workload in extract(load_model(model), host_target()):
        layer = by_shapes.get((workload.args[0].shape, workload.args[1].shape)) if len(workload.args) > 1 else None
        if layer is not None:
            found[workload.name] = layer
    if len(found) != len(layers):
        raise ProcessFailed(f"{len(layers)} layers became {len(found)} workloads: {', '.join(found)}")
    return found


def best_by_layer(report: JsonObject, names: Mapping[str, Layer]) -> dict[Layer, JsonObject]:
    """Return the report's figures of each layer: untuned_sec, best_sec, trials, errors."""
    return {names[found["name"]]: found for found in report["workloads"] if found["name"] in names}


def _tune(model: Path, scratch: Path, options: argparse.Namespace, *, per_layer: int, layer_count: int) -> JsonObject:
    trials = per_layer * layer_count
    command = python(
        *("fleet.cli.main", "tune", model, "--on", options.on, "--trials", trials, "--exhaust", "--no-model", "--json"),
        *("--library", options.library or scratch / "library.sqlite", "--batch", min(16, per_layer)),
        *(("--tracker", options.tracker) if options.tracker else ()),
    )
    common.say(f"tuning {trials} trials on {options.on}")
    with Process(command, scratch / "tune.log") as process:
        report: JsonObject = json.loads(process.finish(_RUN_TIMEOUT_SEC)[-1])
    return report


def _us(sec: float | None) -> float | None:
    return None if sec is None else sec * 1e6


def _figures(
    layers: Sequence[Layer],
    ours: Mapping[Layer, JsonObject],
    torch: JsonObject,
    report: JsonObject,
) -> JsonObject:
    rows = []
    for layer, peer_us, tf32_us in zip(layers, torch["us"], torch["tf32_us"] or [None] * len(layers), strict=True):
        best = _us(ours.get(layer, {}).get("best_sec"))
        rows.append(
            {
                "layer": layer.name,
                "count": layer.count,
                "untuned_us": _us(ours.get(layer, {}).get("untuned_sec")),
                "ours_us": best,
                "peer_us": peer_us,
                "peer_tf32_us": tf32_us,
                "ratio": round(peer_us / best, 3) if best else None,
                "trials": ours.get(layer, {}).get("trials", 0),
                "errors": ours.get(layer, {}).get("errors", {}),
            }
        )
    is_complete = all(row["ours_us"] for row in rows)
    total_ours = sum(row["ours_us"] * row["count"] for row in rows) if is_complete else None
    total_peer = sum(row["peer_us"] * row["count"] for row in rows)
    return {
        "name": "tune_conv2d",
        "unit": "us for the convolutions of one ResNet-18",
        "peer": round(total_peer, 1),
        "ours": round(total_ours, 1) if total_ours else None,
        "ratio": round(total_peer / total_ours, 3) if total_ours else None,
        "layers": rows,
        "device": report["device_model"],
        "torch": {key: torch[key] for key in ("version", "device", "backend", "driver", "threads")},
        "tuning_sec": round(report["wall_sec"], 1),
        "trials": report["trials"],
    }


def _print(figures: JsonObject, command: str, *, trials: int, quick: bool, machine: common.Machine) -> None:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    has_tf32 = any(row["peer_tf32_us"] for row in figures["layers"])
    columns = ("layer", "times", "untuned [us]", "ours [us]", "PyTorch [us]", "faster by")
    rows = [
        (
            *(row["layer"], str(row["count"]), number(row["untuned_us"]), number(row["ours_us"])),
            *(number(row["peer_us"]), "-" if row["ratio"] is None else f"{row['ratio']:.2f}"),
            *((number(row["peer_tf32_us"]),) if has_tf32 else ()),
        )
        for row in figures["layers"]
    ]
    torch = figures["torch"]
    driver = f", driver {torch['driver']}" if torch["driver"] else f", {torch['threads']} threads"
    notes = [
        f"all {sum(row['count'] for row in figures['layers'])} convolutions: ours {number(figures['ours'])} us, "
        f"PyTorch {number(figures['peer'])} us",
        f"tuned on {figures['device']}: {figures['trials']} trials in {figures['tuning_sec']} s",
        f"PyTorch {torch['version']} with {torch['backend']} on {torch['device']}{driver}",
        command,
        *common.doubts(machine, quick=quick),
    ]
    title = f"ResNet-18's conv2d layers, {trials} trials each"
    common.print_table(title, (*columns, "with TF32 [us]") if has_tf32 else columns, rows, notes)


if __name__ == "__main__":
    sys.exit(main())
