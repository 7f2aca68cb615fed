"""Hook that `import tvm` calls through the entry point group "tvm.backends". Free without an OpenCL driver.

A module of its own, because its imports take 0.15 s.
"""

from __future__ import annotations

import os
from pathlib import Path

_VENDORS = Path("/etc/OpenCL/vendors")
_VENDORS_VARIABLES = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")
"""Variables that the two loaders of OpenCL drivers read instead: of ocl-icd, and of Khronos."""


def autoload() -> None:
    """Register OpenCL with the TVM that is being imported, if there is an OpenCL driver."""
    if not any(_VENDORS.glob("*.icd")) and not any(os.environ.get(name) for name in _VENDORS_VARIABLES):
        return
    from device_agents.runtimes.opencl import loader as opencl_loader

    opencl_loader.autoload()
