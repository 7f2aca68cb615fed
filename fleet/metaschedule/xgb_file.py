"""Reads files of MetaSchedule's XGBModel, which hold pickles, without trusting them.

The file is a tar archive; `data.npy` in it is a pickled array of (workload, features, times). A pickle may call any
function of any installed module, so it is not unpickled, but read. TVM's own `load` runs whatever is there.
"""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fleet.cost_model.job_trees import LearnRecord
from fleet.cost_model.samples import Sample, check
from fleet.errors import InvalidRequest
from fleet.metaschedule.array_pickle import read_objects

FAILED_SEC = 1e10
"""What XGBModel stores for a candidate that failed."""

_DATA = "data.npy"
_MOST_BYTES = 1024 * 1024 * 1024
_COLUMNS = 3


def read_groups(path: Path | str) -> list[LearnRecord]:
    """Return the records of a file.

    Raises:
        InvalidRequest: it is no file of XGBModel, or holds anything but arrays, or features or times that no
            measurement can have given.
    """
    try:
        found = [record for row in _rows_of(_data_of(path)) for record in _records(*row)]
        check(Sample(workload=one.workload, run_sec=one.run_sec, features=one.features) for one in found)
    except InvalidRequest:
        raise
    except Exception as error:
        raise InvalidRequest(f"{path} is no file of MetaSchedule's XGBModel: {error}") from error
    return found


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


def _rows_of(content: bytes) -> list[tuple[object, object, object]]:
    """Read an array of objects in numpy's format: [n_workloads, 3]."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype != np.dtype(object):
        raise InvalidRequest(f"the records are of type {dtype}, which XGBModel does not write")
    found, items = read_objects(file.read())
    if found != shape or len(shape) != 2 or shape[1] != _COLUMNS:
        raise InvalidRequest(f"the records are an array of the shape {found}, which XGBModel does not write")
    return list(zip(items[::3], items[1::3], items[2::3], strict=True))


def _records(workload: object, group: object, costs: object) -> Iterator[LearnRecord]:
    """Yield the records of a workload.

    Args:
        group: features of each candidate, as an array for all or a list of arrays.
        costs: their times.
    """
    if not isinstance(workload, str) or not isinstance(group, list | np.ndarray) or not isinstance(costs, np.ndarray):
        raise InvalidRequest("a workload is not its name, features and times")
    for features, cost in zip(group, costs.astype(np.float64).ravel(), strict=True):
        if not isinstance(features, np.ndarray) or features.ndim != 2:
            raise InvalidRequest(f"the features of {workload[:40]} are no rows of numbers")
        run_sec = math.inf if cost >= FAILED_SEC else float(cost)
        yield LearnRecord(workload=workload, run_sec=run_sec, features=features.astype(np.float32))
