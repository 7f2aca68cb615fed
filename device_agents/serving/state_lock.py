"""Lock of an agent's state directory, so that two agents never share one."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from fleet.errors import ConfigError


def lock_state_dir(folder: Path) -> int:
    """Lock a state directory until the returned descriptor is closed. Makes the directory if there is none.

    Raises:
        ConfigError: another agent uses it, or it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot keep state in {folder}: {error.strerror}; name another --state-dir") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise ConfigError(f"another agent uses {folder}; give this one another place with --state-dir") from None
    return descriptor
