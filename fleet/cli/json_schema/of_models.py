"""JSON output of commands about models and programs."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from fleet.cli.json_schema.common import Free


class TensorArgument(TypedDict):
    shape: list[int]
    dtype: str
    is_output: bool


class Build(TypedDict):
    """`fleet build`"""

    file: str
    workload: str
    schedule: str
    unchecked_schedules: int
    size_bytes: int
    digest: str
    function: str
    args: list[TensorArgument]
    target_json: str
    module_kind: str
    linker: str
    tvm_version: str
    loop_nests: list[str]
    object_digest: str


class Clocks(TypedDict):
    wait_sec: float
    load_sec: float
    run_sec: float


class Time(TypedDict):
    """`fleet time`"""

    artifact: str
    function: str
    args: list[str]
    device: str
    device_model: str
    is_simulated: bool
    median_sec: float
    min_sec: float
    max_sec: float
    spread: float
    run_secs: list[float]
    time_source: str
    run_cycles: list[int]
    clocks: Clocks
    provenance: Free


class Output(TypedDict):
    dtype: str
    shape: list[int]
    min: float
    mean: float
    max: float
    sha256: str


class Run(TypedDict):
    """`fleet run`"""

    artifact: str
    function: str
    device: str
    outputs: list[Output]
    file: str | None


class Program(TypedDict):
    """`fleet program`"""

    device: str
    bitstream: str
    was_loaded: bool


class TunedWorkload(TypedDict):
    name: str
    operator: str
    weight: int
    trials: int
    trials_before: int
    untuned_sec: float | None
    static_sec: float | None
    best_sec: float | None
    gflops: float | None
    speedup: float | None
    uses_schedule: bool
    weakness: str | None
    errors: dict[str, int]
    note: str
    is_untuned_above: bool


class Repeats(TypedDict):
    count: int
    device_sec: float
    budget_sec: float
    is_spent: bool


class Ratio(TypedDict):
    """Ratio of two times measured alternately, with its 99 % confidence interval."""

    ratio: float
    low: float
    high: float


class TunedModel(TypedDict):
    """The whole model; its times are in milliseconds, as in the first version."""

    untuned_ms: float | None
    untuned_above_ms: float | None
    untuned_problem: str
    static_ms: float | None
    tuned_ms: float | None
    alone_ms: float | None
    keeps_static: bool
    onnxruntime_ms: float | None
    reference_ms: float | None
    rounds: int
    is_static: bool
    is_untuned_static: bool
    against_static: Ratio | None
    against_engine: Ratio | None
    is_slower: bool
    max_abs_error: float | None
    tolerance: float | None
    tolerance_by: str
    roundings: int
    reference: str
    weakness: str | None
    unchecked: str
    is_right: bool
    message: str
    loop_nests: list[str]
    in_place: list[Free]
    in_place_sec: float


class Ended(TypedDict):
    trials_asked: int
    gain_us: float
    latency_us: float
    sentence: str


class Tune(TypedDict):
    """`fleet tune`"""

    job: str
    title: str
    device: str
    device_model: str
    library: str
    trials: int
    wall_sec: float
    first_trial_sec: float | None
    last_record_sec: float | None
    workloads: list[TunedWorkload]
    model: TunedModel | None
    ended: Ended | None
    charged_sec: float
    target_json: str
    repeats: Repeats
    repeated: int


class Reports(TypedDict):
    """`fleet jobs watch`, and `fleet tune` on several kinds of boards"""

    reports: list[Tune]


class Memory(TypedDict):
    """Read rate of a working set of this size; null: of any size."""

    size_bytes: int | None
    bytes_per_sec: float


class Roofline(TypedDict):
    flop_per_sec: float
    memory: list[Memory]
    source: str


class Pass(TypedDict):
    name: str
    reason: str
    operators: dict[str, int]
    convolution_layouts: dict[str, int]
    transposes: int
    moved_bytes: int


class ProfiledOperator(TypedDict):
    name: str
    operator: str
    group: str
    count: int
    in_place_sec: float
    in_place_min_sec: float
    alone_sec: float | None
    alone_min_sec: float | None
    ratio: float | None
    is_slower_in_place: bool
    flop: float
    bytes: int
    gflops: float | None
    roofline_sec: float | None
    roofline_share: float | None
    is_memory_bound: bool | None


class ProfiledGroup(TypedDict):
    group: str
    ours_sec: float
    onnxruntime_sec: float | None


class Profile(TypedDict):
    """`fleet profile`"""

    model: str
    device: str
    device_model: str
    tuned: int
    total_sec: float
    instrumented_sec: float
    operators_sec: float
    vm_sec: float
    vm_calls: int
    rest_sec: float
    operators: list[ProfiledOperator]
    groups: list[ProfiledGroup]
    onnxruntime: Free | None
    roofline: Roofline | None
    notes: list[str]


class Export(TypedDict):
    """`fleet export`"""

    file: str
    digest: str
    size_bytes: int
    workloads: int
    trials: int
    tuned: int
    static: int
    from_packs: int
    unmeasured: int
    is_right: bool | None
    problem: str
    loop_nests: list[str]
    manifest: Free


class CheckedShapes(TypedDict):
    inputs: dict[str, list[int]]
    is_right: bool
    problem: str
    max_abs_error: float | None
    median_sec: float | None
    run_secs: list[float]
    spread: float | None
    disturbances: list[str]


class ServeCheck(CheckedShapes):
    """`fleet serve-check`"""

    file: str
    device: str
    reference: str
    weakness: str
    shapes: list[CheckedShapes]


class ExplainedProgram(TypedDict):
    name: str
    operator: str
    kind: str
    fused: list[str]
    calls: int
    flop: float
    moved_bytes: int
    constant_bytes: int
    estimated_sec: float | None


class StaticQuality(TypedDict):
    kind: str
    searched: int
    improved: int
    mean_gain: float


class Concats(TypedDict):
    in_place: int
    copied: dict[str, int]


class Explain(TypedDict):
    """`fleet explain`"""

    target: Free
    roofline: Roofline
    passes: list[Pass]
    programs: list[ExplainedProgram]
    static_quality: list[StaticQuality]
    loop_nests: list[str]
    concats: Concats


class FragmentCoverage(TypedDict):
    model: str
    programs: int
    faithful: int
    operations: float


class ExtractedWorkloads(TypedDict):
    """`fleet workloads extract`"""

    file: str
    models: list[FragmentCoverage]


class RefusedMutations(TypedDict):
    reason: str
    count: int
    example: str


class MutatedWorkloads(TypedDict):
    """`fleet workloads mutate`"""

    file: str
    workloads: int
    refused: list[RefusedMutations]
