"""Groups of devices by selector: bounded memory, and turns among the free ones."""

from __future__ import annotations

from fleet.domain.selectors import device_labels
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
        assert matching.first_free(f"arch!=a{number}") == NAMES[0]
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
    assert matching.first_free("kind=cpu") == NAMES[1]
