"""Reading and drawing a search's curve."""

from __future__ import annotations

import math
import xml.etree.ElementTree

from benchmarks.curve import Curve, Reached, Trial, mean_speeds
from fleet.reports.plot import Panel, svg_plots, text_plot


def curve(*times: float | None) -> Curve:
    return Curve(trials=tuple(Trial(at_sec=float(number), run_sec=sec) for number, sec in enumerate(times, start=1)))


def test_the_best_time_so_far_counts() -> None:
    """A failed trial and a slower one change nothing."""
    assert curve(None, 4.0, 8.0, 2.0).best_secs == [math.inf, 4.0, 4.0, 2.0]


def test_a_goal_is_reached_within_five_percent() -> None:
    """Trials and seconds are those of the first schedule that is nearly as fast; a goal may stay out of reach."""
    found = curve(None, 4.0, 2.1, 2.0)

    assert found.reaches(2.0) == Reached(trials=3, sec=3.0)
    assert found.reaches(1.0) is None
    assert curve(None).reaches(math.inf) is None


def test_speeds_are_shares_of_the_reference() -> None:
    """Before the first success the speed is 0; after the last trial it stays."""
    assert curve(None, 4.0, 2.0).speeds(2.0, 4) == [0.0, 0.5, 1.0, 1.0]
    assert curve().speeds(2.0, 2) == [0.0, 0.0]


def test_the_mean_over_layers_is_geometric() -> None:
    """A layer without any time yet leaves the mean at 0, rather than out."""
    assert mean_speeds([curve(None, 4.0), curve(8.0, 4.0)], [1.0, 4.0], 2) == [0.0, 0.5]


def test_plots_show_every_curve() -> None:
    """Curves are letters in a terminal, and lines of a well-formed picture with a plot for each layer."""
    curves, lines = {"random": [0.2, 0.4], "ours": [0.8, 1.0]}, {"ONNX Runtime": 0.9, "PyTorch": 0.5}
    panels = [Panel(title=title, curves=curves, lines=lines) for title in ("a < b", "b", "c", "d", "mean")]

    shown = text_plot(curves, lines).splitlines()
    picture = xml.etree.ElementTree.fromstring(svg_plots(panels, title="a < b"))  # noqa: S314 - made above

    assert {"r", "o", "-", "="} <= set("".join(line.partition("|")[2] for line in shown))
    assert shown[0].endswith("o" * 36)
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2 * len(panels)


def test_a_plot_of_points_joins_them_from_the_first() -> None:
    """A share of 0 is a point, while a missing best time is none."""
    panel = Panel(
        title="shares", curves={"ideal": [0.0, 0.5, 1.0]}, lines={}, first="0 %", last="100 %", has_steps=False
    )

    picture = xml.etree.ElementTree.fromstring(svg_plots([panel], title="t"))  # noqa: S314 - made above

    [line] = picture.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [point.partition(",")[0] for point in line.attrib["points"].split()] == ["34.0", "160.0", "286.0"]
    assert {"0 %", "100 %"} <= {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
