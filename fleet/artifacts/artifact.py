"""A built module as a file named by its digest, and the facts needed to run it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict, Unpack, cast

from fleet.artifacts.elf import arm_float_abi, least_size, read_header
from fleet.base.digests import digest_of
from fleet.domain.measuring import ModuleKind, TensorSpec
from fleet.errors import ArtifactRefused


class ArtifactFacts(TypedDict, total=False):
    """Facts about an artifact beyond its file; see the fields of `Artifact`."""

    function: str
    args: tuple[TensorSpec, ...]
    target_json: str
    module_kind: ModuleKind
    linker: str
    tvm_version: str
    loop_nests: tuple[str, ...]
    object_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One shared library."""

    path: Path
    digest: str
    """ "sha256:<hex>" of the file."""

    function: str = "main"
    """Default function to run."""

    args: tuple[TensorSpec, ...] = ()
    """Arguments of `function`, outputs marked; empty when unknown."""

    target_json: str = ""
    """TVM target that it was built for."""

    module_kind: ModuleKind = ModuleKind.FUNCTIONS
    linker: str = ""
    """Its linker: "x86_64-linux-gnu-gcc"."""

    tvm_version: str = ""
    loop_nests: tuple[str, ...] = ()
    """Parts of a whole model that stay loop nests, since nothing can schedule them: functions, blocks, operators."""

    object_digest: str = ""
    """ "sha256:<hex>" of its object code before linking, which no linker changes; empty when unknown."""

    @classmethod
    def of_file(cls, path: Path | str, **facts: Unpack[ArtifactFacts]) -> Artifact:
        """Make an artifact of a file. Facts come from its side file (see `save_facts`), then from `facts`."""
        path = Path(path)
        known = _read_facts(side_file_of(path)) if side_file_of(path).exists() else ArtifactFacts()
        known.update(facts)
        return cls(path=path, digest=digest_of(path), **known)

    def save_facts(self) -> None:
        """Write the facts beside the file, as `<path>.json`."""
        side_file_of(self.path).write_text(self.facts_json(indent=1))

    def facts_json(self, indent: int | None = None) -> str:
        """Return all that is known beyond the file as JSON."""
        facts = {key: value for key, value in asdict(self).items() if key not in ("path", "digest")}
        return json.dumps(facts, indent=indent)


def elf_machine(header: bytes) -> str | None:
    """Return the architecture ("x86_64", ...) of an ELF file from its first 20 bytes, or None for other files."""
    found = read_header(header)
    return found.machine if found else None


def check_architecture(content: bytes, arch: str, *, device_name: str, instead: str = "the device's target") -> None:
    """Refuse a library that the device cannot load, or that would compute garbage there.

    Args:
        content: the file, or its first `elf.HEADER_BYTES`; 20 bytes tell the machine, but not ARM's float ABI.
        arch: the device's label.
        instead: the right target, for the message.

    Raises:
        ArtifactRefused: no shared library at all, built for another architecture, or soft-float for 32-bit ARM.
    """
    found = elf_machine(content)
    if found is None:
        raise ArtifactRefused(
            f"the artifact is no ELF shared library, so {device_name} cannot load it; build one for {instead}"
        )
    if found != arch:
        raise ArtifactRefused(f"the artifact was built for {found}, {device_name} is {arch}; build it for {instead}")
    if arm_float_abi(content) == "soft":
        raise ArtifactRefused(
            f"the artifact passes floats in integer registers (soft-float), which {device_name} would load and answer "
            'with garbage; build it with "mfloat-abi": "hard" in the target'
        )


def check_complete(start: bytes, size_bytes: int) -> None:
    """Refuse a truncated library: loading one ends the process with SIGBUS.

    Args:
        start: its first `elf.HEADER_BYTES` bytes.
        size_bytes: size of the whole file.

    Raises:
        ArtifactRefused: the tables lie beyond the end of the file.
    """
    least = least_size(start)
    if size_bytes < least:
        raise ArtifactRefused(f"the file is truncated: {size_bytes} of {least} bytes; build or copy it again")


def side_file_of(path: Path) -> Path:
    """Return the path of an artifact's facts."""
    return path.with_name(path.name + ".json")


def _read_facts(path: Path) -> ArtifactFacts:
    try:
        return facts_from_json(path.read_bytes())
    except ArtifactRefused as error:
        raise ArtifactRefused(f"the side file {path}: {error}") from error


def facts_from_json(text: str | bytes) -> ArtifactFacts:
    """Parse the output of `Artifact.facts_json`.

    Raises:
        ArtifactRefused: it is something else.
    """
    try:
        written = json.loads(text)
        facts = cast("ArtifactFacts", {key: written[key] for key in ArtifactFacts.__annotations__ if key in written})
        facts["args"] = tuple(
            TensorSpec(tuple(spec["shape"]), spec["dtype"], bool(spec.get("is_output")))
            for spec in written.get("args", ())
        )
        facts["loop_nests"] = tuple(written.get("loop_nests", ()))
        facts["module_kind"] = ModuleKind(written.get("module_kind", ModuleKind.FUNCTIONS))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactRefused(f"the facts of an artifact cannot be read ({error}); build it again") from error
    return facts
