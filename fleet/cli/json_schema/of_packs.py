"""JSON output of commands about packs."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from fleet.cli.json_schema.common import Free, Moment


class MadePack(TypedDict):
    """`fleet pack make`"""

    file: str
    digest: str
    is_signed: bool
    workloads: int
    records: int
    checked: int


class PushedPack(TypedDict):
    """`fleet pack push`"""

    address: str
    digest: str
    signatures: int


class PackedDeviceModel(TypedDict):
    name: str
    facts: Free
    environments: dict[str, Free]


class PackConfig(TypedDict):
    format: int
    title: str
    licence: str
    made_by: str
    device_models: list[PackedDeviceModel]
    evaluators: dict[str, Free]
    targets: list[str]
    tvm_versions: list[str]
    workloads: int
    records: int
    checked: int


class PackFile(TypedDict):
    title: str
    media_type: str
    digest: str
    size_bytes: int


class PackSigner(TypedDict):
    fingerprint: str
    key: str


class FoundPack(TypedDict):
    """`fleet pack show`"""

    digest: str
    config: PackConfig
    files: list[PackFile]
    signers: list[PackSigner]


class Pack(TypedDict):
    name: str
    digest: str
    source: str
    title: str
    licence: str
    signer: str
    fingerprint: str
    is_trusted: bool
    workloads: int
    records: int
    checked: int
    added_at: Moment


class Packs(TypedDict):
    """`fleet pack add|verify|update|remove`"""

    packs: list[Pack]


class ListedPacks(Packs):
    """`fleet pack list`"""

    packaged: list[str]
