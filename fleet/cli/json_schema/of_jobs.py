"""JSON output of commands about jobs, optimizers and builders."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from fleet.cli.json_schema.common import Free, Moment


class JobData(TypedDict):
    """`fleet jobs submit`, `cancel`, `resume`, `revert`"""

    name: str
    title: str
    state: str
    message: str
    trials_done: int
    trials_failed: int
    trials_total: int
    """0 if only the job's time is limited."""

    holder: str
    owner: str
    """Key id of the account that may change the job; empty if every account may."""

    tags: list[str]
    host: str
    optimizer: str
    priority: int
    is_queued: bool
    reverted_at: Moment | None
    model_digest: str
    tuner: str
    conditions: Free
    started_at: Moment
    ended_at: Moment | None


class Jobs(TypedDict):
    """`fleet jobs list`"""

    jobs: list[JobData]


class JobWorkload(TypedDict):
    name: str
    operator: str
    shash: str
    device_model: str
    weight: float
    trials: int
    untuned_sec: float | None
    best_sec: float | None
    errors: dict[str, int]


class JobSummary(JobData):
    """`fleet jobs show`"""

    workloads: list[JobWorkload]
    model_runs: list[Free]
    spec: Free | None
    progress: Free | None
    report: Free | None


class PlannedBatch(TypedDict):
    rank: int
    selector: str
    operator: str
    count: int
    reason: Free
    sentence: str


class Plan(TypedDict):
    """`fleet jobs why`"""

    job: str
    state: str
    plan: list[PlannedBatch]


class Optimizer(TypedDict):
    name: str
    tracker: str
    holder: str
    host: str
    pid: int
    jobs: int
    builders: int | None
    """None while it runs no job."""


class Optimizers(TypedDict):
    """`fleet optimizer list`"""

    optimizers: list[Optimizer]


class Builder(TypedDict):
    host: str
    pid: int
    address: str
    slots: int
    versions: str
    is_usable: bool


class Builders(TypedDict):
    """`fleet builder list`"""

    builders: list[Builder]


class CurveData(TypedDict):
    """Best time so far, after 0, 1, 2, ... trials and at equal intervals of time; null if no time is known."""

    by_trial_secs: list[float | None]
    by_time_secs: list[float | None]


class ReportedWorkload(TypedDict):
    operator: str
    weight: float
    trials: int
    untuned_sec: float | None
    static_sec: float | None
    best_sec: float | None
    errors: dict[str, int]
    curve: CurveData


class DeviceTime(TypedDict):
    spent_on: str
    device_sec: float


class ReportedDevice(TypedDict):
    device_model: str
    devices: list[str]
    model_curve: CurveData
    workloads: list[ReportedWorkload]
    device_time: list[DeviceTime]
    disturbances: dict[str, int]


class ProgramLatency(TypedDict):
    program: str
    latency_sec: float


class Report(TypedDict):
    """`fleet report`"""

    job: str
    title: str
    state: str
    trials_done: int
    lasted_sec: float
    tvm_versions: list[str]
    targets: list[str]
    whole_model: list[ProgramLatency]
    devices: list[ReportedDevice]
