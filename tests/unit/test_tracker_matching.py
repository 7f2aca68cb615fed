"""Groups of devices by selector: bounded memory, and turns among the free ones."""

from __future__ import annotations

from fleet.domain.selectors import device_labels
from fleet.tracker.core.choosing import take_free
from fleet.tracker.core.matching import Matching

NAMES = tuple(f"devices/d{i}" for i in range(5))


def test_unused_selectors_are_forgotten() -> None:
    """Each takes memory for all devices that will do: with 10,000 devices a thousand of them took 1.3 GB."""
    matching = Matching(max_idle_groups=3, max_idle_names=5)
    for name in NAMES:
        matching.add_device(name, device_labels(name, "cpu", {}))
        matching.set_free(name)
    matching.keep(matching.group("kind=cpu"))

    for number in range(20):
        assert take_free(matching, f"arch!=a{number}", now=0.0) == NAMES[0]
        assert matching.count(f"name=d{number}") == (number < len(NAMES))

    assert matching.group_count == 1 + 3 + 5
    matching.validate([matching.group("kind=cpu")])


def test_free_devices_take_turns() -> None:
    """The device that has been free longest goes first, also in a group that was made later."""
    matching = Matching()
    for name in NAMES:
        matching.add_device(name, device_labels(name, "cpu", {}))
    for name in (NAMES[3], NAMES[1], NAMES[2]):
        matching.set_free(name)
    matching.set_busy(NAMES[3])
    matching.set_free(NAMES[3])

    assert matching.free_devices() == [NAMES[1], NAMES[2], NAMES[3]]
    assert take_free(matching, "kind=cpu", now=0.0) == NAMES[1]


def labelled(matching: Matching, classes: dict[str, str]) -> None:
    """Add free devices, each with a label, in this order of their last use."""
    for name, model in classes.items():
        matching.add_device(f"devices/{name}", device_labels(f"devices/{name}", "cpu", {"model": model}))
        matching.set_free(f"devices/{name}")


def test_a_common_device_is_taken_before_a_rare_one() -> None:
    """The only board of its model is taken last, also if it was free for longer and nobody asked for it yet."""
    matching = Matching()
    labelled(matching, {"rare": "fpga", "a": "pi4", "b": "pi4"})

    assert take_free(matching, "kind=cpu", now=60.0) == "devices/a"
    matching.set_busy("devices/a")
    assert take_free(matching, "kind=cpu", now=60.0) == "devices/b"
    matching.set_busy("devices/b")
    assert take_free(matching, "kind=cpu", now=60.0) == "devices/rare"


def test_a_selector_makes_its_devices_rare_for_three_days() -> None:
    """Before and after, others may take them: every recent request that they suit is suited by the rest as well."""
    matching = Matching()
    labelled(matching, {"x": "x1", "a": "pi4", "b": "pi4"})
    day_sec = 86_400.0

    def taken(now: float) -> str | None:
        take_free(matching, "model!=none", now)  # a wide selector is requested all the time
        return take_free(matching, "kind=cpu", now)

    assert taken(0.0) == "devices/x"
    take_free(matching, "model=x1", now=0.0)
    assert taken(2.9 * day_sec) == "devices/a"
    assert taken(3.1 * day_sec) == "devices/x"


def test_a_class_that_appears_later_belongs_to_the_groups_before_it() -> None:
    matching = Matching()
    labelled(matching, {"a": "pi4"})
    take_free(matching, "model=fpga", now=0.0)
    take_free(matching, "kind=cpu", now=0.0)
    labelled(matching, {"rare": "fpga", "b": "pi4"})
    matching.set_busy("devices/a")

    assert take_free(matching, "kind=cpu", now=1.0) == "devices/b"
    matching.validate([])
