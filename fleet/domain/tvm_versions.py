"""Compatible versions of TVM and tvm-ffi, checked from package metadata alone, since loading a bad pair may crash.

The check is exact on purpose: with apache-tvm 0.27.0.post1, tvm-ffi 0.1.15 and later (which a resolver picks by itself)
make every `TuneContext(..., space_generator=...)` end in a segmentation fault, and TVM's C++ interfaces are stable only
within one release.
"""

from __future__ import annotations

from fleet.base.findings import Finding, State
from fleet.base.version import installed_version
from fleet.errors import ConfigError

KNOWN_PAIRS: dict[str, str] = {"0.27.0.post1": "0.1.14.post1"}
"""Maps each version of apache-tvm to the version of apache-tvm-ffi that it was tested with."""

_INSTALL = "install them with: pip install " + " ".join(
    f"apache-tvm=={tvm} apache-tvm-ffi=={ffi}" for tvm, ffi in list(KNOWN_PAIRS.items())[-1:]
)


def tvm_version() -> str | None:
    """Return the installed version of apache-tvm, or None."""
    return installed_version("apache-tvm")


def tvm_ffi_version() -> str | None:
    """Return the installed version of apache-tvm-ffi, or None."""
    return installed_version("apache-tvm-ffi")


def diagnose() -> list[Finding]:
    """Tell whether the installed TVM and tvm-ffi work together."""
    tvm, ffi = tvm_version(), tvm_ffi_version()
    if tvm is None and ffi is None:
        advice = "needed to serve devices: pip install 'tvm-fleet[agent]'; to tune as well: 'tvm-fleet[tune]'"
        return [Finding(name="tvm", state=State.WARNING, seen="not installed", advice=advice)]
    seen = f"apache-tvm {tvm}, tvm-ffi {ffi}"
    try:
        check_pair(tvm, ffi)
    except ConfigError as error:
        return [Finding(name="tvm", state=State.PROBLEM, seen=seen, advice=str(error))]
    return [Finding(name="tvm", seen=seen)]


def check_versions() -> None:
    """Refuse TVM installations that are missing or known to crash.

    Raises:
        ConfigError: names the problem and the packages to install.
    """
    check_pair(tvm_version(), tvm_ffi_version())


def check_pair(tvm: str | None, ffi: str | None) -> None:
    """Check given versions in the same way as `check_versions`.

    Raises:
        ConfigError: versions that do not fit, with the command that installs others.
    """
    if tvm is None or ffi is None:
        missing = " and ".join(name for name, found in (("apache-tvm", tvm), ("apache-tvm-ffi", ffi)) if found is None)
        raise ConfigError(f"{missing} not installed; {_INSTALL}")
    if tvm not in KNOWN_PAIRS:
        raise ConfigError(f"apache-tvm {tvm} is none of the tested versions ({', '.join(KNOWN_PAIRS)}); {_INSTALL}")
    if ffi != KNOWN_PAIRS[tvm]:
        raise ConfigError(
            f"apache-tvm-ffi {ffi} crashes with apache-tvm {tvm}, which needs {KNOWN_PAIRS[tvm]}; {_INSTALL}"
        )
