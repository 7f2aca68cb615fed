"""Files of `fleet workloads` as models without a whole: each workload is tuned alone. `fleet.fragments` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.base.config import parse_plain_yaml
from fleet.base.digests import digest_of
from fleet.base.yaml_text import read_text
from fleet.errors import ConfigError, ImportFailed
from fleet.models.importing.importer import Frontend, Importer
from fleet.models.importing.program_file import check_unchanged, no_relax
from fleet.models.importing.shapes import Shapes
from fleet.models.importing.value import Model, ModelFormat

MOST_BYTES = 10 * 1000**2
"""Of a file. PyYAML takes a second for each megabyte."""

_REFUSAL = "is a file of workloads, not a model: fleet tune and fleet jobs submit take it"


def read_workloads(
    path: Path, wanted: Sequence[Shapes], batch_size: int | None, random_weights_seed: int | None
) -> list[Model]:
    """Read a file of workloads. Lowering checks its entries.

    Raises:
        ImportFailed: the file is missing, or not a mapping in plain YAML.
        InvalidRequest: shapes or random weights are requested; workloads have fixed shapes and no weights.
    """
    check_unchanged(path, wanted, batch_size, random_weights_seed)
    try:
        text = read_text(path, most_bytes=MOST_BYTES)
        content, _ = parse_plain_yaml(text, where=str(path))
    except ConfigError as error:
        raise ImportFailed(str(error)) from error
    if not isinstance(content, dict):
        raise ImportFailed(f"{path} is no file of workloads: 'fleet workloads extract' writes one")
    stored = text.encode()
    return [
        Model(
            title=path.stem,
            format=ModelFormat.WORKLOADS,
            digest=digest_of(stored),
            input_names=(),
            inputs=(),
            output_names=(),
            stored=stored,
        )
    ]


WORKLOADS = Importer(
    forms=("*.yaml",),
    suffix=".yaml",
    read=read_workloads,
    refusal=_REFUSAL,
    frontend=Frontend(format=ModelFormat.WORKLOADS, to_relax=no_relax(_REFUSAL)),
)
