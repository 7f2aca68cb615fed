"""Signs packs by `ssh-keygen`, which reads the key and asks for its passphrase."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fleet.base.scratch import scratch_dir
from fleet.base.text import sanitize
from fleet.errors import ConfigError
from fleet.packs.sshsig import NAMESPACE


def sign(content: bytes, key: Path) -> bytes:
    """Return the signature of some bytes.

    Args:
        key: a private key, or the public one of a key that an SSH agent holds.

    Raises:
        ConfigError: there is no such key, or no ssh-keygen.
    """
    if not key.is_file():
        raise ConfigError(f"there is no key {key}; make one with ssh-keygen, or name another")
    with scratch_dir("sign") as folder:
        file = folder / "manifest"
        file.write_bytes(content)
        command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key.absolute()), "-n", NAMESPACE, str(file)]
        try:
            done = subprocess.run(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, check=False)
        except FileNotFoundError as error:
            raise ConfigError("ssh-keygen is missing, which signs packs; install OpenSSH's client") from error
        signature = folder / "manifest.sig"
        if done.returncode or not signature.is_file():
            said = sanitize(done.stderr.decode(errors="replace"), 300).strip()
            raise ConfigError(f"ssh-keygen does not sign with {key}: {said}")
        return signature.read_bytes()
