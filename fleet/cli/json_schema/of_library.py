"""JSON output of commands about the library of records."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from fleet.cli.json_schema.common import Free, Moment


class BestRecord(TypedDict):
    workload: str
    operator: str
    shash: str
    target: str
    device_model: str
    tvm_version: str
    best_sec: float
    untuned_sec: float | None
    gflops: float | None
    run_secs: list[float]
    checked: bool | None
    is_proven: bool | None
    record: int
    job: str
    measured_at: Moment
    trace: str
    disturbances: list[str]


class Best(TypedDict):
    """`fleet library best`"""

    best: list[BestRecord]


class CoverageShare(TypedDict):
    coverage: str
    operators: int
    operations: float


class OperatorCoverage(TypedDict):
    operator: str
    name: str
    shash: str
    calls: int
    flop: float
    coverage: str
    best_sec: float | None
    kind: str | None
    neighbour: str | None


class LibraryCoverage(TypedDict):
    """`fleet library coverage`"""

    target: Free
    device_model: str | None
    tvm_version: str | None
    shares: list[CoverageShare]
    operators: list[OperatorCoverage]


class StalePart(TypedDict):
    records: int
    models_time_share: float | None
    device_sec: float
    without_device_sec: int


class Stale(TypedDict):
    """`fleet library stale`"""

    max_age_sec: float
    all: StalePart
    stale: StalePart
    reasons: dict[str, StalePart]
    unknown_environments: int
    unknown_code: int | None
    unknown_programs: int | None
    refused_fragments: int | None


class KindCoverage(TypedDict):
    device_model: str
    kind: str
    exact: int
    static: int
    neighbour: int
    nothing: int


class BuildPoint(TypedDict):
    device_model: str
    tvm_version: str
    version: str
    environment: str
    workloads: int
    candidates: int
    ratio: float
    last_at: Moment


class BuildTime(TypedDict):
    best_sec: float
    tvm_version: str
    version: str
    environment: str
    candidates: int
    record: int


class Regression(TypedDict):
    operator: str
    shash: str
    device_model: str
    before: BuildTime
    now: BuildTime
    ratio: float
    command: str


class LibraryReport(TypedDict):
    """`fleet report --library`"""

    freshness: Stale
    tvm_version: str | None
    workloads: int
    candidates: int
    coverage: list[KindCoverage]
    builds: list[BuildPoint]
    regressions: list[Regression]


class Ratio(TypedDict):
    ratio: float
    low: float
    high: float


class RefreshedWorkload(TypedDict):
    shash: str
    new_shash: str
    operator: str
    models_sec: float
    verdict: str
    old_digest: str
    new_digest: str
    ratio: float | None
    code: Ratio | None
    problem: str


class Refreshed(TypedDict):
    """`fleet library refresh`"""

    device_model: str
    target: str
    tvm_version: str
    is_dry_run: bool
    records_carried: int
    refused_fragments: int
    workloads_to_measure: int
    expected_device_sec: float
    device_sec: float
    environment: Ratio | None
    verdicts: dict[str, int]
    workloads: list[RefreshedWorkload]
    problem: str


class Snapshot(TypedDict):
    digest: str
    made_at: Moment
    published_at: Moment | None
    is_in_use: bool
    feature_version: str
    records: int
    workloads: dict[str, int]
    metrics: Free
    size_bytes: int


class Snapshots(TypedDict):
    """`fleet library snapshots`"""

    snapshots: list[Snapshot]


class Pruned(TypedDict):
    """`fleet library prune`"""

    snapshots: list[str]
    model_files: list[str]
    size_bytes: int
    records: int | None
    records_kept: dict[str, int] | None
    is_dry_run: bool


class Exported(TypedDict):
    """`fleet library export`"""

    directory: str
    workloads: int
    records: int


class Imported(TypedDict):
    """`fleet library import`"""

    workloads: int
    records: int
    known_records: int


class Migrated(TypedDict):
    """`fleet library migrate`"""

    had_version: int
    has_version: int
    backup: str | None
