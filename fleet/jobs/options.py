"""Options of a tuning run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from cross.compile.cache import BuildCache
from cross.targets.target import Target, parse_target
from fleet.base.plain import to_object
from fleet.building.cluster.address import ClusterAddress
from fleet.domain.jobs import DEFAULT_STRATEGY
from fleet.domain.measuring import Evaluator
from fleet.errors import ConfigError
from fleet.models.importers import importer_of
from fleet.models.importing.shapes import Shapes

TRIAL_EVALUATOR = Evaluator(number=1, repeat=3, min_repeat_ms=5, max_repeat=6, spread_target=0.05, look_runs=3)
"""A slower candidate stops after one run, four, or a repeat (decision 27); a close one repeats until times agree."""

UNTIL_GAIN = 0.005
"""Usual share of the latency that a tenth of the budget must gain for a search to go on."""

_HOTTEST_C = 150


def trial_evaluator(*, cooldown_ms: int = 0, cool_below_c: float | None = None, flush_cache: bool = False) -> Evaluator:
    """Return the evaluator of trials, with the user's options for cooling and caches.

    Raises:
        ConfigError: no device is ever at this temperature.
    """
    if cool_below_c is not None and not 0 < cool_below_c < _HOTTEST_C:
        raise ConfigError(f"--cool-below-c {cool_below_c:g}: expected degrees Celsius between 0 and {_HOTTEST_C}")
    return replace(
        TRIAL_EVALUATOR,
        cooldown_interval_ms=cooldown_ms,
        cool_below_c=cool_below_c or 0.0,
        flush_cache=flush_cache,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """One `fleet tune`."""

    model: Path
    program: str = ""
    """The user's name of the program in `model`, if that is not the file: "matmul-256", "MODULE:NAME"."""

    selector: str = "cpu"
    also_on: tuple[str, ...] = ()
    """Selectors of more kinds of boards: the job tunes for each of them, and its trials go where they gain most."""

    devices: int = 1
    """Boards of one model that measure at the same time, each another workload."""

    tracker: str | None = None
    """Address of a running fleet; None: start one for this machine and stop it at the end."""

    library: str | None = None
    snapshots: str | None = None
    """Address of an optimizer with the snapshots of the cost model to use; None: those of the library."""

    trials: int | None = None
    """New trials of this job; None: `trials_per_workload` for each chosen workload, or with `minutes` `enough`."""

    trials_per_workload: int = 32
    tasks: tuple[str, ...] = ()
    """Shell patterns of workload names; empty: all."""

    top: int | None = None
    """Maximum number of workloads: the costliest ones."""

    strategy: str = DEFAULT_STRATEGY
    """Search strategy, see `fleet.optimizer.strategies`."""

    seed: int = 0
    shapes: Sequence[Shapes] = ()
    """Sets of shapes of inputs with open dimensions, which one program is for; empty: none is open."""

    input_batch_size: int | None = None
    """Size of every input's open first dimension."""

    random_weights: bool = False
    target_json: str | None = None
    """The target to use instead of the device's own."""

    batch_size: int = 8
    enough: int = 512
    max_age_sec: float | None = None
    """Age from which records do not count, and only their schedules are tried [s]; None: all count."""

    tags: tuple[str, ...] = ()
    """The user's words to find the job by."""

    wait_timeout_sec: float | None = None
    connect_timeout_sec: float = 10.0
    priority: int = 0
    workers: int | None = None
    cluster: ClusterAddress | None = None
    """Builders that search and build; None: this machine does."""

    build_cache: BuildCache | None = None
    """Cache of this machine's builds, kept beyond the job."""

    build_timeout_sec: float = 30.0
    trial_timeout_sec: float = 10.0
    evaluator: Evaluator = TRIAL_EVALUATOR
    deadline: datetime | None = None
    """No search begins after this; the results by then are compared and kept. Aware."""

    minutes: float | None = None
    """Length of the search [min] from the job's start or resumption; > 0."""

    target_ms: float | None = None
    """Stop once the tuned workloads, each as often as the model calls it, take this together [ms]."""

    until_gain: float = UNTIL_GAIN
    """Stop once the next tenth of the trials or minutes should gain less than this share of the latency; 0: never."""

    compares_model: bool = True
    """Build the whole model untuned, static and tuned, time them, and check the outputs."""

    @property
    def target(self) -> Target | None:
        """Return the target to use instead of the device's own."""
        return None if self.target_json is None else parse_target(self.target_json)

    @property
    def selectors(self) -> tuple[str, ...]:
        """Return the selectors of the boards, one for each kind."""
        return self.selector, *self.also_on

    @property
    def title(self) -> str:
        """Return the job's name: its model as named to `fleet tune` on its machine."""
        name = Path(self.program or self.model).name
        importer = importer_of(self.model)
        prefix = importer.prefix if importer else ""
        return f"{prefix}{name.removeprefix(prefix)}"

    def conditions(self) -> dict[str, object]:
        """Return the options that decide whether a run continues an interrupted one; JSON-ready."""
        return {
            "selector": self.selector,
            "trials": self.trials,
            **({} if self.minutes is None else {"minutes": self.minutes}),
            **({} if self.until_gain == UNTIL_GAIN else {"until_gain": self.until_gain}),
            "tasks": list(self.tasks),
            "top": self.top,
            "seed": self.seed,
            **({} if self.strategy == DEFAULT_STRATEGY else {"strategy": self.strategy}),
            "random_weights": self.random_weights,
            "shapes": [{name: list(shape) for name, shape in shapes.items()} for shapes in self.shapes],
            "input_batch_size": self.input_batch_size,
            "batch_size": self.batch_size,
            **({} if self.evaluator == TRIAL_EVALUATOR else {"evaluator": to_object(self.evaluator)}),
        }
