"""`fleet pack make|push|show|add|list|verify|update|remove`: signed files of records, and those of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fleet.base.config import config_file
from fleet.base.outputs import check_output, put_file
from fleet.base.quantities import count_text
from fleet.base.scratch import scratch_dir
from fleet.base.text import sanitize
from fleet.cli import options
from fleet.cli.activity import working
from fleet.cli.options import LibraryOption
from fleet.cli.pack_view import found_data, kept_data, print_found, print_kept
from fleet.cli.record_filters import MaxAgeOption, TargetOption, WhereOption, record_filter
from fleet.cli.stored import existing_library
from fleet.domain.tvm_versions import tvm_version as installed_tvm
from fleet.errors import ConfigError, NotFound
from fleet.packs.addresses import registry_address
from fleet.packs.making import PackOrder, make_pack
from fleet.packs.opening import find_address, open_address
from fleet.packs.packaged import packaged_names
from fleet.packs.registry import push as push_pack
from fleet.packs.shelf import KeptPack, Shelf, Trust, refusing
from fleet.packs.signers import parse_signers
from fleet.packs.staging import find_pack, stage
from fleet.packs.web import Web

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_MOST_SIGNERS_BYTES = 1024**2

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="PACK",
        help="A file, a folder, oci://host/name:tag, https://host/folder/, or the name of an installed package's pack.",
    ),
]
PlainHttpOption = Annotated[
    bool, typer.Option("--plain-http", help="Allow HTTP without encryption to other machines; no password is sent.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="As 'fleet pack list' shows it.")]
NamesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="As 'fleet pack list' shows them. Default: all.")
]
SignersOption = Annotated[
    Path | None,
    typer.Option(
        "--signers",
        metavar="FILE",
        help="Allowed signers, as ssh-keygen(1) reads them. Default: allowed_signers beside config.yaml.",
    ),
]
UnsignedOption = Annotated[
    bool, typer.Option("--allow-unsigned", help="Accept packs without a signature of an allowed signer.")
]


@app.callback()
def pack() -> None:
    """Share the best records as signed files, and use those of others."""


@app.command()
def make(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: an OCI image layout as .tar.")],
    device_model: Annotated[str, typer.Option("--device-model", metavar="MODEL", help="The hardware of the records.")],
    target: TargetOption = None,
    tvm_version: Annotated[
        str | None, typer.Option("--tvm-version", metavar="VERSION", help="Default: the installed TVM, else all.")
    ] = None,
    max_age: MaxAgeOption = None,
    where: WhereOption = None,
    best: Annotated[int, typer.Option("--best", min=1, max=1000, metavar="K", help="Records of each workload.")] = 3,
    checked: Annotated[bool, typer.Option("--checked", help="Only records with a checked output.")] = False,
    title: Annotated[str, typer.Option("--title", help="Default: the device model.")] = "",
    licence: Annotated[str, typer.Option("--licence", metavar="SPDX", help="Licence of the records.")] = "",
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="SSH key to sign with; the public one of a key in an SSH agent."),
    ] = None,
    library: LibraryOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Write the best records of a device model to a file for others.

    Equal records give equal bytes. The file names neither devices nor jobs, but has the environments of the records:
    kernel, firmware, governor, and the owner's facts. Slower schedules than none are left out.

    Example: fleet pack make rpi4.pack --device-model 'Cortex-A72 x4' --checked --sign ~/.ssh/id_ed25519
    """
    check_output(file)
    asked = record_filter(target=target, device_model=device_model, max_age=max_age, where=where)
    within = replace(asked, tvm_version=tvm_version or installed_tvm())
    with working(f"writing {file}"), existing_library(library) as opened, scratch_dir("packed") as folder:
        scopes = opened.scopes(within=within)
        if not scopes:
            raise NotFound(f"{opened.url} has no such records of {device_model!r}; 'fleet library best' shows all")
        order = PackOrder(
            scopes=[within.of(scope) for scope in scopes],
            best=best,
            checked_only=checked,
            title=title or device_model,
            licence=licence,
            key=sign,
        )
        made = make_pack(opened, order, folder / "pack")
        put_file(folder / "pack", file)
    config = made.config
    if json_output:
        counts = {"workloads": config.workloads, "records": config.records, "checked": config.checked}
        options.print_json({"file": str(file), "digest": made.digest, "is_signed": sign is not None, **counts})
        return
    print(made.digest)
    counted = f"{count_text(config.records, 'record')} of {count_text(config.workloads, 'workload')}"
    signed = "signed" if sign is not None else "not signed: --sign names a key"
    options.stderr().print(f"{file} has {counted}, {config.checked} of them checked; {signed}", markup=False)


@app.command()
def push(
    source: SourceArgument,
    address: Annotated[str, typer.Argument(metavar="oci://HOST/NAME:TAG", help="Its place in an OCI registry.")],
    plain_http: PlainHttpOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """Upload a pack and its signatures to an OCI registry.

    Credentials are those of 'docker login' and 'podman login'.

    Example: fleet pack push rpi4.pack oci://registry.example.org/lab/rpi4:2026-11
    """
    target, web = registry_address(address), Web(allows_plain_http=plain_http)
    with working(f"uploading to {target}"), refusing(source), scratch_dir("pushed") as folder:
        with open_address(find_address(source), web) as opened:
            found = find_pack(opened)
            stage(opened, found, folder)
        push_pack(folder, found, target, web)
    if json_output:
        options.print_json({"address": str(target), "digest": found.digest, "signatures": len(found.signatures)})
        return
    print(found.digest)
    options.stderr().print(f"{target} has it, with {count_text(len(found.signatures), 'signature')}", markup=False)


@app.command()
def show(source: SourceArgument, plain_http: PlainHttpOption = False, json_output: options.JsonOption = False) -> None:
    """Show the facts, files and signers of a pack, without adding it. Its records are not read.

    Example: fleet pack show rpi4.pack
    """
    with refusing(source), open_address(find_address(source), Web(allows_plain_http=plain_http)) as layout:
        found = find_pack(layout)
    if json_output:
        options.print_json(found_data(found))
    else:
        print_found(found)


@app.command()
def add(
    source: SourceArgument,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Default: that of the file.")] = None,
    signers: SignersOption = None,
    allow_unsigned: UnsignedOption = False,
    plain_http: PlainHttpOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """Verify a pack and keep a copy, for 'fleet build', 'fleet export' and 'fleet tune'.

    Its records serve workloads without records of your own, in the order of addition. A refused pack leaves nothing.

    Example: fleet pack add rpi4.pack
    """
    with working(f"verifying {source}"):
        kept = Shelf().add(source, _trust(signers, allow_unsigned=allow_unsigned, plain_http=plain_http), name)
    _print_changed([kept], "added", as_json=json_output)


@app.command("list")
def list_packs(json_output: options.JsonOption = False) -> None:
    """List your packs, in the order in which their records are looked up, and packs of installed Python packages.

    Example: fleet pack list
    """
    found, packaged = Shelf().kept(), packaged_names()
    if json_output:
        options.print_json({"packs": [kept_data(one) for one in found], "packaged": packaged})
        return
    print_kept(found)
    sources = {one.source for one in found}
    if fresh := [name for name in packaged if f"package:{name}" not in sources]:
        names = sanitize(", ".join(fresh))
        options.stderr().print(f"in installed packages: {names}; 'fleet pack add NAME' adds one", markup=False)


@app.command()
def verify(names: NamesArgument = None, signers: SignersOption = None, json_output: options.JsonOption = False) -> None:
    """Check your copies of packs again: digests, signatures, allowed signers and each record.

    Example: fleet pack verify
    """
    shelf, trust = Shelf(), _trust(signers)
    chosen = [shelf.named(name) for name in names] if names else shelf.kept()
    with working("verifying packs"):
        found = [shelf.verify(one, trust) for one in chosen]
    _print_changed(found, "unchanged", as_json=json_output)


@app.command()
def update(
    names: NamesArgument = None,
    signers: SignersOption = None,
    allow_unsigned: UnsignedOption = False,
    plain_http: PlainHttpOption = False,
    json_output: options.JsonOption = False,
) -> None:
    """Read packs from their sources again, and keep the new versions.

    Example: fleet pack update rpi4
    """
    shelf, trust = Shelf(), _trust(signers, allow_unsigned=allow_unsigned, plain_http=plain_http)
    chosen = [shelf.named(name) for name in names] if names else shelf.kept()
    with working("updating packs"):
        found = [shelf.update(one, trust) for one in chosen]
    _print_changed(found, "up to date", as_json=json_output)


@app.command()
def remove(name: NameArgument, json_output: options.JsonOption = False) -> None:
    """Remove a pack.

    Example: fleet pack remove rpi4
    """
    _print_changed([Shelf().remove(name)], "removed", as_json=json_output)


def _trust(signers: Path | None, *, allow_unsigned: bool = False, plain_http: bool = False) -> Trust:
    """Return the signers that the user allows. Raises ConfigError."""
    file = signers or config_file().parent / "allowed_signers"
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_SIGNERS_BYTES).decode(errors="replace")
    except OSError as error:
        if signers is not None or not isinstance(error, FileNotFoundError):
            raise ConfigError(f"cannot read the allowed signers {file}: {error.strerror}") from error
        text = ""
    return Trust(signers=parse_signers(text), file=file, allows_unsigned=allow_unsigned, allows_plain_http=plain_http)


def _print_changed(packs: list[KeptPack], state: str, *, as_json: bool) -> None:
    if as_json:
        options.print_json({"packs": [kept_data(one) for one in packs]})
        return
    for one in packs:
        signed = f"signed by {one.signer}" if one.is_trusted else "UNSIGNED, or by an unknown key"
        counted = f"{count_text(one.records, 'record')} of {count_text(one.workloads, 'workload')}"
        style = "" if one.is_trusted else "yellow"
        options.stderr().print(f"{one.name} {state}: {counted}, {signed}", style=style, markup=False)
