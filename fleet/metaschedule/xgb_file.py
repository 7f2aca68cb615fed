"""Reads files of MetaSchedule's XGBModel, which hold pickles, without trusting them.

The file is a tar archive; `data.npy` in it is a pickled array of (workload, features, times). A pickle may call any
function of any installed module, so only what makes up arrays is let through. TVM's own `load` runs whatever is there.
"""

from __future__ import annotations

import io
import math
import pickle
import tarfile
from pathlib import Path

import numpy as np

from fleet.cost_model.learn import LearnRecord
from fleet.errors import InvalidRequest

FAILED_SEC = 1e10
"""What XGBModel stores for a candidate that failed."""

_DATA = "data.npy"
_MOST_BYTES = 1024 * 1024 * 1024
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}


def read_groups(path: Path | str) -> list[LearnRecord]:
    """Return the records of a file.

    Raises:
        InvalidRequest: it is no file of XGBModel, or holds anything but arrays.
    """
    try:
        rows = _unpickle(_data_of(path))
        return [
            LearnRecord(
                workload=str(workload),
                run_sec=math.inf if cost >= FAILED_SEC else float(cost),
                features=np.asarray(features, np.float32),
            )
            for workload, group, costs in rows
            for features, cost in zip(group, np.asarray(costs, np.float64), strict=True)
        ]
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(f"{path} is no file of MetaSchedule's XGBModel: {error}") from error


def _data_of(path: Path | str) -> bytes:
    with tarfile.open(path) as archive:
        for member in archive:
            if Path(member.name).name != _DATA or not member.isfile():
                continue
            if member.size > _MOST_BYTES:
                raise InvalidRequest(f"{path}: {member.size} bytes of records; at most {_MOST_BYTES} are read")
            file = archive.extractfile(member)
            if file is not None:
                return file.read()
    raise InvalidRequest(f"{path} has no {_DATA}: it is no file of MetaSchedule's XGBModel")


class _Unpickler(pickle.Unpickler):
    """Knows arrays and nothing else."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise InvalidRequest(f"the file asks for {module}.{name}, which is no part of an array: it is not read")
        return super().find_class(module, name)


def _unpickle(content: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    """Read an array of objects in numpy's format."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype != np.dtype(object):
        raise InvalidRequest(f"the records are of type {dtype}, which XGBModel does not write")
    array = _Unpickler(file).load()
    if not isinstance(array, np.ndarray) or array.shape != shape:
        raise InvalidRequest("the records are no array")
    return array
