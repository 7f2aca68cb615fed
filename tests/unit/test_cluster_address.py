"""Which cluster of builders may be used: what cannot work or must not be done is refused at once."""

from __future__ import annotations

import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fleet.errors import AlreadyExists, ConfigError
from fleet.optimizer.cluster.address import CERT, ClusterAddress, versions
from fleet.optimizer.cluster.builder import SLOT, resource_name
from fleet.optimizer.cluster.certs import make_certs
from fleet.optimizer.cluster.pool import matching


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    make_certs(tmp_path / "certs")
    return tmp_path / "certs"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://10.0.0.5:8786", "takes TLS"),
        ("tcp://scheduler:8786", "takes TLS"),
        ("tls://10.0.0.5:8786", "--dask-certs"),
        ("10.0.0.5:8786", "tls://HOST:PORT"),
        ("tls://10.0.0.5", "tls://HOST:PORT"),
        ("tls://10.0.0.5:x", "tls://HOST:PORT"),
        ("http://10.0.0.5:8786", "tls://HOST:PORT"),
    ],
)
def test_what_must_not_be_used_is_refused(address: str, said: str) -> None:
    """Plain text only on this machine, and TLS never without certificates."""
    with pytest.raises(ConfigError, match=said):
        ClusterAddress(address=address).check()


def test_this_machine_alone_needs_no_certificates(certs: Path) -> None:
    """Loopback may be plain; with certificates, anything may be reached."""
    ClusterAddress(address="tcp://127.0.0.1:8786").check()
    ClusterAddress(address="tls://10.0.0.5:8786", certs=certs).check()


def test_files_that_lack_are_named(certs: Path) -> None:
    """Who copied half of the folder reads which half."""
    (certs / CERT).unlink()

    with pytest.raises(ConfigError, match=r"lacks cert\.pem"):
        ClusterAddress(address="tls://10.0.0.5:8786", certs=certs).check()


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(ConfigError, match=r"pip install 'tvm-fleet\[dask\]'"):
        ClusterAddress(address="tcp://127.0.0.1:8786").check()


def test_certificates_are_the_owners_alone(certs: Path) -> None:
    """Nobody else reads the key, TLS accepts the certificate as its own authority, and a second one is refused."""
    found = x509.load_pem_x509_certificate((certs / CERT).read_bytes())
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    context.load_cert_chain(certs / CERT, certs / "key.pem")

    assert [path.stat().st_mode & 0o077 for path in certs.iterdir()] == [0, 0, 0]
    assert found.not_valid_after_utc - datetime.now(UTC) > timedelta(days=365)
    with pytest.raises(AlreadyExists):
        make_certs(certs)


def test_only_builders_of_our_versions_count() -> None:
    """Others are named, once there is nobody else; Dask workers that are no builders are nobody."""
    ours, others = ("a 1 f00d", [resource_name(SLOT)]), ("b 2 beef", ["slot of tvm-fleet 0.0 with apache-tvm 1"])

    assert matching([], "tls://x:1") == matching([("stock", ["GPU"])], "tls://x:1") == []
    assert matching([ours, others], "tls://x:1") == ["a 1 f00d"]
    with pytest.raises(ConfigError, match=r"b has tvm-fleet 0\.0 with apache-tvm 1") as refused:
        matching([others], "tls://x:1")
    assert versions() in str(refused.value)
