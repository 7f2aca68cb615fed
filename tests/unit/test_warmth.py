"""Summaries of cold and warm searches."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.cost_data.warmth import Row, read_rows, summary


def row(cold_trials: int, warm_trials: int, *, is_new: bool = False, seed: int = 0) -> Row:
    return Row(
        operator="o",
        is_new=is_new,
        seed=seed,
        trials=64,
        cold_trials=cold_trials,
        warm_trials=warm_trials,
        cold_sec=2.0 * cold_trials,
        warm_sec=1.0 * warm_trials,
        is_reached=warm_trials <= 64,
        is_static_enough=cold_trials == 1,
        best_us=10.0,
        to_gain=0.0,
    )


def test_searches_without_anything_to_save_are_counted_apart() -> None:
    """If the first trial suffices anyway, a ratio of 1 does not show the savings of a warm start."""
    rows = [row(1, 1), row(40, 10), row(10, 10), row(64, 65, is_new=True)]

    found = summary(rows)

    assert (found["searches"], found["static_enough"], found["to_save"]["searches"]) == (4, 1, 3)
    shapes, new = found["other_shapes"], found["new_operators"]
    assert shapes["trials"] == {"cold": 20.0, "warm": 10.0, "ratio": 0.5, "least": 0.25, "most": 1.0}
    assert shapes["seconds"]["ratio"] == 0.25
    assert (new["searches"], new["reached"]) == (1, 0)


def test_without_savings_there_is_no_figure() -> None:
    """Means of no searches are missing, not one and not an error."""
    found = summary([row(1, 1), row(1, 1, is_new=True)])

    assert (found["peer"], found["ours"], found["ratio"]) == (None, None, None)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_file_of_results_is_read_up_to_searches_of_other_lengths(tmp_path: Path) -> None:
    """Comparisons of several sittings are joined, but those of 64 trials do not count for 256."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**asdict(row(8, 4, seed=seed)), "machine": {}}) + "\n" for seed in range(2)))

    assert read_rows(path, trials=64) == [row(8, 4), row(8, 4, seed=1)]
    assert read_rows(path, trials=256) == []
    assert read_rows(tmp_path / "none.jsonl", trials=64) == []
