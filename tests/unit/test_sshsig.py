"""SSH signatures and files of allowed signers, without ssh-keygen."""

from __future__ import annotations

import base64

import pytest

from fleet.errors import InvalidRequest
from fleet.packs.signers import parse_signers
from fleet.packs.sshsig import signer_of

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAICa+gNR9V3/Mu+DibDuWIWq8kvzjPhbwE3blmPTHavHd"
LINE = f"ssh-ed25519 {KEY} laptop"


@pytest.mark.parametrize(
    "line",
    [
        f"ann@lab {LINE}",
        f'"ann@lab" {LINE}',
        f'ann@lab namespaces="tvm-fleet-pack" {LINE}',
        f'ann@lab namespaces="git,tvm-fleet-*" {LINE}',
        f"  ann@lab   {LINE}\r",
    ],
)
def test_a_line_allows_its_key(line: str) -> None:
    """Names, patterns of namespaces and comments are those of ssh-keygen(1)."""
    assert {base64.b64decode(KEY): "ann@lab"} == parse_signers(f"# signers\n\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        f"# ann@lab {LINE}",
        f'ann@lab namespaces="git" {LINE}',
        f'ann@lab namespaces="tvm-fleet-*,!tvm-fleet-pack" {LINE}',
        f"ann@lab cert-authority {LINE}",
        f'ann@lab valid-before="20200101" {LINE}',
        f'ann@lab namespaces="tvm-fleet-pack",valid-before="20200101" {LINE}',
        "ann@lab ssh-ed25519 AAA",
        "ann@lab ssh-ed25519",
    ],
)
def test_a_line_that_is_not_understood_allows_nobody(line: str) -> None:
    """An option that restricts a key must not be overlooked."""
    assert {} == parse_signers(line)


@pytest.mark.parametrize("content", [b"", b"x", b"SSHSIG", b"SSHSIG\0\0\0\2", b"SSHSIG\0\0\0\1\xff\xff\xff\xff"])
def test_damaged_signatures_are_refused(content: bytes) -> None:
    """A length beyond the end is refused without reading further."""
    lines = ["-----BEGIN SSH SIGNATURE-----", base64.b64encode(content).decode(), "-----END SSH SIGNATURE-----"]
    with pytest.raises(InvalidRequest, match="signature"):
        signer_of("\n".join(lines).encode(), b"content")


@pytest.mark.parametrize("armored", [b"", b"\xff", b"-----BEGIN SSH SIGNATURE-----\n!\n-----END SSH SIGNATURE-----"])
def test_other_texts_are_no_signatures(armored: bytes) -> None:
    """The form is that of ssh-keygen."""
    with pytest.raises(InvalidRequest, match="ssh-keygen -Y sign"):
        signer_of(armored, b"content")
