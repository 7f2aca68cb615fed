"""Files of models and of learned state: ONNX, exported models, snapshots, MetaSchedule's files, TIR."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import struct
import zipfile
import zlib

import numpy as np

from fleet.artifacts.artifact import facts_from_json
from fleet.cost_model.feature_codec import unpack_rows
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.scope import RecordScope
from fleet.errors import ArtifactRefused, ConfigError, ImportFailed, InvalidRequest, LibraryError
from fleet.library import Library
from fleet.library.exchange import RECORD_FILE, WORKLOAD_FILE, import_json
from fleet.models.importing.onnx_file import read_onnx
from fleet.models.importing.program_file import one_function
from fleet.models.importing.tflite_file import read_tflite
from fleet.runtime.manifest import parse_manifest
from fleet.runtime.package import open_package, read_manifest, verify
from tests.fuzz.target import Target, no_loop
from tests.fuzz.targets.places import scratch, written

_BETWEEN = b"|||"
_MANIFEST = {
    "format": 1,
    "title": "a",
    "model_digest": "sha256:00",
    "target": {"kind": "llvm"},
    "device_type": "cpu",
    "machine": "x86_64",
    "cpu_features": ["avx2"],
    "tvm_version": "0.27",
    "threads": 2,
    "affinity": "cores",
    "device_model": "",
    "inputs": [{"name": "x", "shape": [1, 3], "dtype": "float32"}],
    "library": "model.so",
    "outputs": [{"name": "y", "shape": [1, 3], "dtype": "float32"}],
    "records": [{"workload": "w", "operator": "o", "shash": "1", "uid": "u", "median_sec": 1e-3}],
    "files": {"model.so": {"sha256": "00", "size_bytes": 3}},
    "check": {"inputs": ["a.npy"], "outputs": ["b.npy"], "tolerances": [0.1], "reference": "onnx", "seed": 1},
    "others": [],
}


def _onnx(content: bytes) -> None:
    path = written("model.onnx", content)
    with contextlib.suppress(ImportFailed, InvalidRequest):
        read_onnx(path, [{"image": (2, 3)}], None, None)
    with contextlib.suppress(ImportFailed, InvalidRequest):
        read_onnx(path, [{}], 4, None)


def _tflite(content: bytes) -> None:
    with contextlib.suppress(ImportFailed, InvalidRequest):
        read_tflite(written("model.tflite", content), [{}], None, None)


def _tflite_models() -> list[bytes]:
    from tests.unit.test_tflite_import import convolution_model

    return [b"\x18\0\0\0TFL3" + bytes(64), convolution_model()]


def _manifest(content: bytes) -> None:
    with contextlib.suppress(ArtifactRefused):
        parse_manifest(content, where="here")


def _package(content: bytes) -> None:
    with contextlib.suppress(ArtifactRefused, ConfigError):
        package = open_package(written("model.fleet", content))
        verify(package, read_manifest(package))


def _facts(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        facts_from_json(content)


def _snapshot(content: bytes) -> None:
    for wrapped in (content, _npz(header=np.frombuffer(content, np.uint8))):
        with contextlib.suppress(InvalidRequest):
            _ = Snapshot.of(wrapped).model


def _rows(content: bytes) -> None:
    for stores in (content, content[:4] + zlib.compress(content[4:])):
        with contextlib.suppress(InvalidRequest):
            unpack_rows(stores)


def _database(content: bytes) -> None:
    workloads, _, records = content.partition(_BETWEEN)
    written(WORKLOAD_FILE, workloads)
    written(RECORD_FILE, records)
    scope = RecordScope(target_json='{"kind":"llvm"}', device_model="m", tvm_version="0.27")
    with contextlib.suppress(LibraryError, InvalidRequest):
        import_json(_library(), scratch(), scope)


@functools.cache
def _library() -> Library:
    return Library.open(f"sqlite:///{scratch()}/library.sqlite")


def _close_library() -> None:
    if _library.cache_info().currsize:
        _library().close()
    _library.cache_clear()


def _tir(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        one_function(content.decode(errors="replace"), "here")


def _npz(**arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _packages() -> list[bytes]:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (("manifest.json", json.dumps(_MANIFEST)), ("model.so", "abc")):
            archive.writestr(zipfile.ZipInfo(name), content)
    return [file.getvalue()]


def _snapshot_headers() -> list[bytes]:
    calibration = {"slope": 1.0, "slope_spread": 0.1, "noise": 0.1, "level": [0.0, 1.0], "level_spread": 1.0}
    header = {
        "feature_version": 1,
        "width": 4,
        "calibration": calibration,
        "left_out_pairs": 0.7,
        "scales": [],
        "instruction_sets": [],
        "device_models": [],
        "metrics": {"pairs": 0.7},
    }
    one = {**header, "scales": [1.0], "device_models": ["a"]}
    text = json.dumps(header).encode()
    return [text, json.dumps(one).encode(), _npz(header=np.frombuffer(text, np.uint8))]


def _onnx_models() -> list[bytes]:
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    nodes = [helper.make_node("MatMul", ["image", "w"], ["m"]), helper.make_node("Relu", ["m"], ["out"], name="r")]
    graph = helper.make_graph(nodes, "g", [image], [out], [weight])
    return [helper.make_model(graph).SerializeToString(deterministic=True)]


def _database_files() -> list[bytes]:
    import base64

    module = b'{"root":1}'
    encoded = base64.b64encode(struct.pack("<Q", len(module)) + module).decode()
    workload = json.dumps(["123", encoded])
    target, args = {"kind": "llvm", "num-cores": 4}, [["TENSOR", "float32", [4, 4]]]
    record = json.dumps([0, [[[["Split", ["l1"], [1], []]], []], [1e-3, 2e-3], target, args]])
    return [f"{workload}\n".encode() + _BETWEEN + f"{record}\n{record}\n".encode()]


def _programs() -> list[bytes]:
    import tvm

    from fleet.workloads.programs import matmul

    assert tvm
    return [matmul(8, "float32").mod_json.encode()]


_JSON_WORDS = (b"Infinity", b"NaN", b"1e400", b"-1", b"null", b"[", b"]", b"{", b"}", b'"', b"1" * 400, b"[[", b"0.5")

MODELS = [
    Target(name="onnx_model", run=no_loop(_onnx), seeds=_onnx_models, quick_inputs=100),
    Target(name="tflite_model", run=no_loop(_tflite), seeds=_tflite_models, quick_inputs=60),
    Target(
        name="manifest",
        run=no_loop(_manifest),
        seeds=lambda: [json.dumps(_MANIFEST).encode()],
        words=(*_JSON_WORDS, b'"format":', b'"shape":'),
    ),
    Target(name="package", run=no_loop(_package), seeds=_packages, words=(b"PK\x01\x02", b"PK\x05\x06", b"manifest")),
    Target(
        name="artifact_facts",
        run=no_loop(_facts),
        seeds=lambda: [b'{"function":"main","args":[{"shape":[4],"dtype":"float32","is_output":true}]}'],
        words=(*_JSON_WORDS, b'"module_kind":"RELAX_VM"', b'"loop_nests":'),
    ),
    Target(name="model_snapshot", run=no_loop(_snapshot), seeds=_snapshot_headers, words=_JSON_WORDS, quick_inputs=100),
    Target(name="stored_features", run=no_loop(_rows), seeds=lambda: [struct.pack("<HH", 2, 3) + bytes(12)]),
    Target(
        name="metaschedule_database",
        close=_close_library,
        run=no_loop(_database),
        seeds=_database_files,
        words=_JSON_WORDS,
        quick_inputs=60,
    ),
    Target(name="tir_json", run=no_loop(_tir), seeds=_programs, words=_JSON_WORDS, most_bytes=16384, quick_inputs=0),
]
