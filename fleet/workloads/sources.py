"""Single programs, as named by users: matmul-256, module.json, MODULE:NAME or file.py:NAME.

A name in Python is a PrimFunc, an IRModule with one, or a function without arguments that returns one of them. It is
the user's own code, run in the user's own process; only its TIR travels, as JSON.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fleet.base.config import cache_dir, did_you_mean
from fleet.domain.workload import Workload
from fleet.errors import ConfigError, InvalidRequest
from fleet.models.importing.program_file import PROGRAM_SUFFIX, one_function
from fleet.models.model import is_model
from fleet.workloads.workload import workload_of

if TYPE_CHECKING:
    from tvm.ir import IRModule

KNOWN = "matmul-SIZE[-DTYPE], module.json, MODULE:NAME or file.py:NAME of Python"
"""Accepted forms, in words."""

_MATMUL = re.compile(r"matmul-(?P<size>\d+)(?:-(?P<dtype>[a-z]+\d+))?")
_IN_PYTHON = re.compile(r"(?P<module>[A-Za-z_][\w.]*|.+\.py):(?P<name>[A-Za-z_]\w*)")
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64")
_LARGEST_MATMUL = 1 << 15
"""Three matrices of float32 then take 12 GiB, and indices still fit 32 bits."""


def is_program(source: str) -> bool:
    """Tell whether a text has the form of a program's name, whether or not it exists."""
    if is_model(source):
        return False
    if source.endswith(PROGRAM_SUFFIX) or _MATMUL.fullmatch(source):
        return True
    named = _IN_PYTHON.fullmatch(source)
    return named is not None and not is_model(named["module"])  # "model.onnx:OPERATOR" is an operator's name


def find_program(source: str) -> Workload:
    """Return the program that a user names.

    Raises:
        ConfigError: there is no such file, module or name.
        InvalidRequest: the content is no TIR program.
    """
    if named := _MATMUL.fullmatch(source):
        from fleet.workloads.programs import matmul

        if not 0 < int(named["size"]) <= _LARGEST_MATMUL:
            raise ConfigError(f"{source}: SIZE goes from 1 to {_LARGEST_MATMUL}")
        if named["dtype"] not in (None, *_DTYPES):
            raise ConfigError(f"{source}: there is no type {named['dtype']}{did_you_mean(named['dtype'], _DTYPES)}")
        return matmul(int(named["size"]), named["dtype"] or "float32")
    if source.endswith(PROGRAM_SUFFIX):
        path = Path(source)
        try:
            return _workload(one_function(path.read_text(), source), path.stem, source)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{path} is not a module as tvm.ir.save_json writes it") from error
    if named := _IN_PYTHON.fullmatch(source):
        return _workload(_in_python(named["module"], named["name"]), named["name"], source)
    raise ConfigError(f"unknown program {source!r}; write {KNOWN}")


def program_file(source: str) -> Path:
    """Return a file with a program as JSON, writing it unless the program is such a file.

    Raises:
        ConfigError, InvalidRequest: see `find_program`.
    """
    if source.endswith(PROGRAM_SUFFIX):
        return Path(source)
    workload = find_program(source)
    content = workload.mod_json.encode()
    folder = cache_dir() / "programs" / hashlib.sha256(content).hexdigest()[:16]
    path = folder / f"{workload.name}{PROGRAM_SUFFIX}"
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(content)
            draft.replace(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; $FLEET_CACHE_DIR names another place") from error
    return path


def _workload(mod: IRModule, name: str, source: str) -> Workload:
    try:
        return workload_of(mod, name=name)
    except Exception as error:  # TVM's analysis raises many classes
        raise InvalidRequest(f"{source} is not a TIR program: {str(error).strip()[-200:]}") from error


def _in_python(module_name: str, name: str) -> IRModule:
    module = _load(module_name)
    found: object = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{module_name} has no {name!r}")
    if callable(found) and not _is_tir(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:  # the user's code
            raise InvalidRequest(f"{module_name}:{name}() failed: {type(error).__name__}: {error}") from error
    if not _is_tir(found):
        raise InvalidRequest(f"{module_name}:{name} is a {type(found).__name__}, not a PrimFunc or an IRModule")
    import tvm

    return one_function(tvm.ir.save_json(found), f"{module_name}:{name}")


def _is_tir(found: object) -> bool:
    from tvm.ir import IRModule
    from tvm.tirx import PrimFunc

    return isinstance(found, IRModule | PrimFunc)


def _load(module_name: str) -> ModuleType:
    """Import a module as `python -m` would: the current folder comes first."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        if not module_name.endswith(".py"):
            return importlib.import_module(module_name)
        spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{module_name} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # TVMScript looks up the sources of its functions there
        spec.loader.exec_module(module)
        return module
    except ConfigError:
        raise
    except (ImportError, OSError) as error:
        raise ConfigError(f"cannot import {module_name}: {error}") from error
    except SystemExit as error:
        raise InvalidRequest(f"{module_name} ends the process (sys.exit) while it is imported; guard that") from error
    except Exception as error:  # the user's code
        raise InvalidRequest(f"{module_name} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
