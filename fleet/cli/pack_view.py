"""Output of `fleet pack`: tables for people, data for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from fleet.base.plain import to_object
from fleet.base.quantities import count_text
from fleet.base.text import sanitize
from fleet.cli.tables import clock_time, facts_table, make_console, make_table
from fleet.domain.environment import named_facts
from fleet.packs.shelf import KeptPack
from fleet.packs.staging import FoundPack

_DIGITS = 12
_LEFT = frozenset({"pack", "title", "signed by"})


def kept_data(pack: KeptPack) -> dict[str, object]:
    """Return the facts about a pack of the user."""
    return {**to_object(pack), "is_trusted": pack.is_trusted}


def print_kept(packs: Sequence[KeptPack]) -> None:
    """Print a row for each pack."""
    table = make_table("pack", "digest", "records", "workloads", "checked", "added", "signed by", "title", left=_LEFT)
    for one in packs:
        signer = Text(sanitize(one.signer)) if one.is_trusted else Text("UNSIGNED", style="yellow")
        counts = map(str, (one.records, one.workloads, one.checked))
        title = Text(sanitize(one.title))
        table.add_row(one.name, one.hex[:_DIGITS], *counts, clock_time(one.added_at), signer, title)
    make_console(is_wide=False).print(table if packs else "no packs")


def found_data(pack: FoundPack) -> dict[str, object]:
    """Return the facts about a pack in a file or folder."""
    return {
        "digest": pack.digest,
        "config": to_object(pack.config),
        "files": [
            {"title": one.title, "media_type": one.media_type, "digest": one.digest, "size_bytes": one.size_bytes}
            for one in pack.manifest.layers
        ],
        "signers": [{"fingerprint": one.key.fingerprint, "key": one.key.line} for one in pack.signatures],
    }


def _facts_text(facts: Mapping[str, object]) -> str:
    return sanitize(", ".join(f"{name}={value}" for name, value in sorted(facts.items())))


def print_found(pack: FoundPack) -> None:
    """Print the facts about a pack in a file or folder."""
    config = pack.config
    counted = f"{count_text(config.records, 'record')} of {count_text(config.workloads, 'workload')}"
    rows = [
        ("digest", pack.digest),
        ("licence", config.licence),
        ("made by", config.made_by),
        ("content", f"{counted}, {config.checked} checked"),
        *(("device", one.name) for one in config.device_models),
        *(
            ("environment", _facts_text(named_facts(one)))
            for model in config.device_models
            for one in model.environments.values()
        ),
        *(("timed with", _facts_text(one)) for one in config.evaluators.values() if one),
        *(("target", sanitize(one)) for one in config.targets),
        ("TVM", sanitize(", ".join(config.tvm_versions))),
        *(("file", f"{sanitize(one.title or one.media_type)} {one.digest}") for one in pack.manifest.layers),
        *(("signed by", f"{one.key.fingerprint}: {one.key.line}") for one in pack.signatures),
        *(() if pack.signatures else (("signed by", "nobody"),)),
    ]
    make_console(is_wide=False).print(facts_table(rows, title=sanitize(config.title)))
