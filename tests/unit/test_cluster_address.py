"""Addresses and certificates of build clusters: unusable or unsafe ones are refused at once."""

from __future__ import annotations

import shutil
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fleet.building.cluster.address import CERT, KEY, ClusterAddress, own_certs, versions
from fleet.building.cluster.builder import SLOT, resource_name
from fleet.building.cluster.certs import ensure_certs, make_certs
from fleet.building.cluster.pool import matching
from fleet.errors import AlreadyExists, ConfigError


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_certs(tmp_path / "certs")
    return tmp_path / "certs"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://10.0.0.5:8786", "has no TLS.*tls://10"),
        ("tcp://127.0.0.1:8786", "has no TLS.*fleet builder scheduler"),
        ("tls://10.0.0.5:8786", "fleet builder scheduler.*--dask-certs"),
        ("10.0.0.5:8786", "tls://HOST:PORT"),
        ("tls://10.0.0.5", "tls://HOST:PORT"),
        ("tls://10.0.0.5:x", "tls://HOST:PORT"),
        ("http://10.0.0.5:8786", "tls://HOST:PORT"),
    ],
)
def test_a_cluster_that_must_not_be_used_is_refused(
    address: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain text is refused, also on the loopback, and so is TLS without certificates."""
    monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        ClusterAddress(address=address).check()


def test_the_accounts_own_certificates_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler makes them, and every command finds them; expired ones are replaced."""
    monkeypatch.setenv("FLEET_CREDENTIALS_DIR", str(tmp_path / "keys"))
    cluster = ClusterAddress(address="tls://10.0.0.5:8786")

    def made() -> bytes:
        ensure_certs(own_certs())
        cluster.check()
        return (cluster.folder / KEY).read_bytes()

    first = made()
    assert made() == first
    shutil.rmtree(own_certs())
    make_certs(own_certs(), now=datetime(2000, 1, 1, tzinfo=UTC))
    expired = (cluster.folder / KEY).read_bytes()
    assert made() not in (first, expired)
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["builders"]


def test_a_key_that_others_can_read_is_refused(certs: Path) -> None:
    """Copying with default permissions makes a key readable by others."""
    (certs / KEY).chmod(0o644)

    with pytest.raises(ConfigError, match="chmod"):
        ClusterAddress(address="tls://10.0.0.5:8786", certs=certs).check()


def test_files_that_lack_are_named(certs: Path) -> None:
    """The error names the file that is missing from an incomplete copy."""
    (certs / CERT).unlink()

    with pytest.raises(ConfigError, match=r"lacks cert\.pem"):
        ClusterAddress(address="tls://10.0.0.5:8786", certs=certs).check()


def test_missing_dask_is_reported_with_the_extra(certs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(ConfigError, match=r"pip install 'tvm-fleet\[dask\]'"):
        ClusterAddress(address="tls://127.0.0.1:8786", certs=certs).check()


def test_certificates_are_the_owners_alone(certs: Path) -> None:
    """Only the owner can read the key, TLS accepts the certificate as its own authority, and a second one is
    refused.
    """
    found = x509.load_pem_x509_certificate((certs / CERT).read_bytes())
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    context.load_cert_chain(certs / CERT, certs / "key.pem")

    assert [path.stat().st_mode & 0o077 for path in certs.iterdir()] == [0, 0, 0]
    assert found.not_valid_after_utc - datetime.now(UTC) > timedelta(days=365)
    with pytest.raises(AlreadyExists):
        make_certs(certs)


def test_only_builders_of_our_versions_count() -> None:
    """The error names builders of other versions if there are no matching ones; Dask workers without a slot do not
    count.
    """
    ours, others = ("a 1 f00d", [resource_name(SLOT)]), ("b 2 beef", ["slot of tvm-fleet 0.0 with apache-tvm 1"])

    assert matching([], "tls://x:1") == matching([("stock", ["GPU"])], "tls://x:1") == []
    assert matching([ours, others], "tls://x:1") == ["a 1 f00d"]
    with pytest.raises(ConfigError, match=r"b has tvm-fleet 0\.0 with apache-tvm 1") as refused:
        matching([others], "tls://x:1")
    assert versions() in str(refused.value)
