"""Identities: certificates, join tokens, the credentials of an account, and the table of permissions."""

from __future__ import annotations

import datetime as dt
import importlib
import stat
from pathlib import Path

import pytest

from fleet.errors import ConfigError, InvalidRequest, NotAllowed
from fleet.identity.certificates import (
    CERTIFICATE_LIFE,
    authority_in,
    issue,
    issue_own,
    make_authority,
    make_key,
    make_request,
    needs_renewal,
    own_key_id,
    pin_of,
    public_key_of,
    read_identity,
    read_request,
)
from fleet.identity.credentials import Credentials, PlainSecret, parse_proof
from fleet.identity.join_tokens import make_join_token, parse_join_token
from fleet.identity.policy import RULES, check_owner, check_role
from fleet.identity.roles import Identity, Role
from fleet.identity.store import CredentialStore, canonical_address

NOW = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def authority() -> Credentials:
    return make_authority(NOW)


def member(authority: Credentials, role: Role = Role.USER) -> Credentials:
    return issue_own(authority, make_key(), name="alice@laptop", role=role, now=NOW)


@pytest.mark.parametrize("role", [Role.TRACKER, Role.AGENT, Role.USER, Role.ADMIN])
def test_a_certificate_has_name_role_and_key(authority: Credentials, role: Role) -> None:
    """Name, role and key are read as they were signed; the key is the same as that of the private half."""
    made = member(authority, role)

    assert Identity(name="alice@laptop", role=role, key_id=own_key_id(made.key_pem)) == read_identity(
        made.certificate_pem
    )


def test_a_request_proves_that_its_sender_has_the_key(authority: Credentials) -> None:
    """The key of a signed request is read from it; a request with changed bytes is refused."""
    key_pem = make_key()
    request = make_request(key_pem)

    signed = issue(authority, read_request(request), name="a", role=Role.AGENT, now=NOW)

    assert own_key_id(key_pem) == read_identity(signed).key_id
    with pytest.raises(InvalidRequest):
        read_request(request[:-1] + bytes([request[-1] ^ 1]))
    with pytest.raises(InvalidRequest):
        read_request(b"hello")


def test_a_certificate_is_renewed_before_it_ends(authority: Credentials) -> None:
    """It is due weeks before its end, but not on its first day."""
    made = member(authority)

    assert not needs_renewal(made.certificate_pem, NOW)
    assert needs_renewal(made.certificate_pem, NOW + CERTIFICATE_LIFE - dt.timedelta(days=10))


def test_a_boards_clock_may_stand_at_its_beginning(authority: Credentials) -> None:
    """A board without a clock's battery starts in 1970: a certificate is not "not yet valid" there."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(member(authority).certificate_pem)

    assert certificate.not_valid_before_utc.year == 1970


def test_a_certificate_carries_its_authority(authority: Credentials) -> None:
    """A joining process compares the authority with its token before it sends anything; without one it sends
    nothing.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    def der(role: Role) -> bytes:
        return x509.load_pem_x509_certificate(member(authority, role).certificate_pem).public_bytes(Encoding.DER)

    assert pin_of(authority.authority_pem) == pin_of(authority_in(der(Role.TRACKER)))
    for shown in (der(Role.AGENT), b"", b"nonsense"):
        with pytest.raises(InvalidRequest):
            authority_in(shown)


def test_join_tokens_survive_being_written_down() -> None:
    """A token is read back from its text; an altered or truncated one is refused with the command that makes one."""
    token = make_join_token(bytes(32))

    assert token == parse_join_token(f"  {token}\n")
    for text in ("", "fleet1", str(token)[:-1], str(token).replace("fleet1", "fleet9"), f"{token}x", "fleet1.ä.ö"):
        with pytest.raises(InvalidRequest, match="fleet tracker token create"):
            parse_join_token(text)


def test_credentials_are_private_to_their_owner(authority: Credentials, tmp_path: Path) -> None:
    """The folder is 0700, the file 0600; one that others can read is refused, not used."""
    store = CredentialStore(tmp_path / "credentials")
    made = member(authority)

    path = store.save("10.0.0.5:9290", made)

    assert made == store.find("10.0.0.5:9290")
    assert (0o600, 0o700) == (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(store.folder.stat().st_mode))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        store.find("10.0.0.5:9290")


def test_a_file_with_other_content_is_reported(tmp_path: Path) -> None:
    """A torn or foreign file names itself and the remedy."""
    secret = PlainSecret(secret=b"x" * 32)

    assert secret == parse_proof(secret.to_pem(), where="here")
    with pytest.raises(ConfigError, match="here holds no credentials"):
        parse_proof(secret.to_pem()[:20], where="here")


@pytest.mark.parametrize(
    ("address", "known_as"),
    [("localhost:1", "127.0.0.1:1"), ("[::1]:1", "127.0.0.1:1"), ("0.0.0.0:1", "127.0.0.1:1"), ("Pi:1", "pi:1")],
)
def test_this_machine_has_one_name(address: str, known_as: str) -> None:
    """The own account finds a tracker that listens on all addresses at the loopback."""
    assert known_as == canonical_address(address)


def test_credentials_of_trackers_that_are_gone_for_good_go_too(authority: Credentials, tmp_path: Path) -> None:
    """The credentials of a temporary fleet are removed by the next tracker, even after a kill. Others stay."""
    store = CredentialStore(tmp_path / "credentials")
    (tmp_path / "lasting").mkdir()
    store.save("127.0.0.1:1", member(authority), home=tmp_path / "temporary")
    store.save("127.0.0.1:2", member(authority), home=tmp_path / "lasting")
    store.save("10.0.0.5:9290", member(authority))

    store.prune()

    assert ["10.0.0.5:9290.pem", "127.0.0.1:2.pem"] == sorted(path.name for path in store.folder.iterdir())


def test_the_table_has_exactly_the_rpcs() -> None:
    """A new rpc needs an entry with its permissions: the descriptors of all services are walked."""
    there = set()
    for path in sorted((ROOT / "fleet/v1").glob("*_service_pb2.py")):
        module = importlib.import_module(f"fleet.v1.{path.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            there |= {f"{service.name}.{method.name}" for method in service.methods}

    assert there == set(RULES)
    assert all(rule.roles >= rule.own_only for rule in RULES.values())


def test_every_call_that_changes_something_at_the_tracker_is_audited() -> None:
    """Read-only calls are not audited: there are too many of them."""
    at_the_tracker = {rpc: rule for rpc, rule in RULES.items() if not rpc.startswith(("SessionService", "Snapshot"))}
    looks = {
        rpc for rpc in at_the_tracker if rpc.partition(".")[2].startswith(("Get", "List", "Watch", "Check", "Explain"))
    }

    assert {rpc for rpc, rule in at_the_tracker.items() if rule.is_audited} == at_the_tracker.keys() - looks


@pytest.mark.parametrize(
    ("rpc", "refused"),
    [
        ("AgentService.Attach", {Role.STRANGER, Role.USER, Role.ADMIN}),
        ("LeaseService.OpenLeases", {Role.STRANGER, Role.AGENT}),
        ("SessionService.Call", {Role.STRANGER, Role.AGENT}),
        ("IdentityService.CreateJoinToken", {Role.STRANGER, Role.AGENT, Role.USER}),
        ("IdentityService.Join", set()),
        ("LeaseService.NotYetWritten", {Role.STRANGER, Role.AGENT, Role.USER, Role.ADMIN}),
    ],
)
def test_roles_reach_as_far_as_the_table_says(rpc: str, refused: set[Role]) -> None:
    """An agent leases nothing, a user lets nobody in, a stranger may only join; an rpc outside the table is refused to
    all.
    """
    found = set()
    for role in (Role.STRANGER, Role.AGENT, Role.USER, Role.ADMIN):
        try:
            check_role(f"fleet.v1.{rpc}", Identity(name="x", role=role, key_id="k"))
        except NotAllowed:
            found.add(role)

    assert refused == found


def test_a_user_reaches_only_for_its_own() -> None:
    """Ownership is by key, not by name; an admin may act on everything."""
    check_owner("LeaseService.RevokeLease", Identity(name="a", role=Role.USER, key_id="k"), "k", what="leases/1")
    check_owner("LeaseService.RevokeLease", Identity(name="a", role=Role.ADMIN, key_id="x"), "k", what="leases/1")
    with pytest.raises(NotAllowed, match="leases/1"):
        check_owner("LeaseService.RevokeLease", Identity(name="a", role=Role.USER, key_id="x"), "k", what="leases/1")


def test_a_key_of_another_kind_is_refused() -> None:
    """Only P-256 keys are signed: others would fail later, in the libraries of boards."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import CertificateSigningRequestBuilder, Name

    other = ec.generate_private_key(ec.SECP384R1())
    request = CertificateSigningRequestBuilder().subject_name(Name([])).sign(other, hashes.SHA256())

    with pytest.raises(InvalidRequest, match="P-256"):
        read_request(request.public_bytes(serialization.Encoding.DER))


def test_the_names_of_an_authority_are_not_its_members_choice(authority: Credentials) -> None:
    """A member that calls itself like the tracker gets another name in its certificate: it cannot serve as one."""
    from cryptography import x509

    made = issue_own(authority, make_key(), name="tracker.fleet", role=Role.USER, now=NOW)
    certificate = x509.load_pem_x509_certificate(made.certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    assert [f"{own_key_id(made.key_pem)}.user.fleet", "member.fleet"] == names.get_values_for_type(x509.DNSName)
    assert own_key_id(made.key_pem) == read_identity(made.certificate_pem).key_id
    assert public_key_of(made.certificate_pem)
