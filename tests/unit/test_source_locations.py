"""Locations of values in YAML files, as error messages name them."""

from __future__ import annotations

from fleet.base.config import parse_yaml
from fleet.base.source_locations import at, at_key

TEXT = """
tracker: lab:9290
devices:
  - &board
    driver: cpu
    labels: {rack: 3}

  - <<: *board
    driver: zynq
12: twelve
"""
_, PLACE = parse_yaml(TEXT, where="agent.yaml")


def test_a_place_names_file_line_and_keys() -> None:
    """Items of a list are counted."""
    assert at(PLACE) == "agent.yaml"
    assert at(PLACE, "tracker") == "agent.yaml: line 2: tracker"
    assert at(PLACE, "devices", 0) == "agent.yaml: line 4: devices[0]"
    assert at(PLACE, "devices", 0, "labels", "rack") == "agent.yaml: line 6: devices[0]: labels: rack"


def test_a_message_about_a_key_has_the_path_of_its_mapping_and_the_line_of_the_key() -> None:
    assert at_key(PLACE, 12) == "agent.yaml: line 10"
    assert at_key(at(PLACE, "devices", 0), "labels") == "agent.yaml: line 6: devices[0]"


def test_merged_keys_have_the_line_where_they_are_written() -> None:
    """A key that replaces a merged one has its own."""
    second = at(PLACE, "devices", 1)

    assert at(second, "labels") == "agent.yaml: line 6: devices[1]: labels"
    assert at(second, "driver") == "agent.yaml: line 9: devices[1]: driver"


def test_an_unknown_value_has_the_line_of_the_innermost_known_one() -> None:
    assert at(PLACE, "jail") == "agent.yaml: line 2: jail"
    assert at(PLACE, "devices", 0, "threads") == "agent.yaml: line 4: devices[0]: threads"
    assert at(PLACE, "tracker", "host", 3) == "agent.yaml: line 2: tracker: host[3]"


def test_values_from_elsewhere_have_no_lines() -> None:
    assert at("a file", "devices", 0, "labels") == "a file: devices[0]: labels"
    assert at_key("a file", "devices") == "a file"
