"""Environment of child processes: an allowlist for kernel workers, everything but secrets for build processes.

The code that a process runs can read its environment, and so can other processes of the same user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FOR_KERNELS = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "LANG", "LANGUAGE", "VIRTUAL_ENV"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_BIND_NOW", "GLIBC_TUNABLES", "GCONV_PATH", "PREFIX"),
        *("XDG_CACHE_HOME", "XDG_DATA_HOME", "FLEET_CACHE_DIR", "FLEET_DATA_DIR"),
        *("GPU_DEVICE_ORDINAL", "GPU_MAX_HEAP_SIZE", "GPU_MAX_ALLOC_PERCENT", "VK_ICD_FILENAMES", "VK_DRIVER_FILES"),
    )
)
"""Variables of the system, Python and TVM's loaders that a worker may need."""

_FOR_KERNELS_PREFIXES = (
    *("LC_", "PYTHON", "TVM_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "MALLOC_", "QEMU_"),
    *("CUDA_", "NVIDIA_", "ROCR_", "ROCM_", "HIP_", "HSA_", "AMD_", "OCL_", "OPENCL_", "POCL_", "ANDROID_"),
)
"""Families of settings of runtimes and of vendors' drivers."""

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|AUTH|FLEET_LIBRARY", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")
"""A URL with a password."""


def for_kernels(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on the allowlist for processes that run untrusted kernels."""
    return {
        name: value
        for name, value in without_secrets(environment).items()
        if name in _FOR_KERNELS or name.startswith(_FOR_KERNELS_PREFIXES)
    }


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without secrets, which are detected by name and by passwords in URLs."""
    return {
        name: value
        for name, value in environment.items()
        if not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value)
    }
