"""Requirements of the OpenCL tests. They fail with the name of a missing package."""

from __future__ import annotations

import shutil
from pathlib import Path


def require_opencl() -> None:
    """Fail unless PoCL, the loader, the headers and a compiler are installed."""
    needed = {
        "pocl-opencl-icd": Path("/etc/OpenCL/vendors/pocl.icd").exists(),
        "opencl-c-headers": Path("/usr/include/CL/cl.h").exists(),
        "g++": shutil.which("g++") is not None,
    }
    missing = [name for name, is_there in needed.items() if not is_there]
    assert not missing, f"install the Debian packages {' '.join(missing)}"
