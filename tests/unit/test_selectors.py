"""Selectors match devices by their labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.selectors import device_labels, parse_selector
from fleet.errors import InvalidRequest

PI = device_labels("devices/pi4-03", "cpu", {"arch": "aarch64", "model": "Raspberry Pi 4"})


@pytest.mark.parametrize(
    "text",
    ["*", "cpu", "kind=cpu", "name=pi4-03", "name=devices/pi4-03", "arch=aarch64,cpu", "model=Raspberry*",
     "arch!=x86_64", "gpu!=mali", " cpu , arch = aarch64".replace(" = ", "=")],
)  # fmt: skip
def test_a_device_is_matched(text: str) -> None:
    """Shorthand, equality, wildcards and negation all find the board that they describe."""
    assert parse_selector(text).matches(PI)


@pytest.mark.parametrize("text", ["cuda", "arch=x86_64", "name=pi4", "gpu=mali", "kind!=cpu", "cpu,arch=x86_64"])
def test_another_device_is_not(text: str) -> None:
    """One condition that does not hold is enough; an absent label equals nothing."""
    assert not parse_selector(text).matches(PI)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "cpu,",
        "=x",
        "Arch=x",
        "arch==x",
        "a=b=c",
        "two words",
        "name=devices/",
        "name=devices/devices/a",
        "a=\udce9",
    ],
)
def test_an_invalid_selector_is_refused_with_an_example(text: str) -> None:
    """The message shows the part that cannot be read and a good selector."""
    with pytest.raises(InvalidRequest, match="write it like 'cpu'"):
        parse_selector(text)


@given(st.permutations(["cpu", "arch=aarch64", "name=pi4-03", "kind=cpu"]))
def test_order_and_repeats_do_not_count(parts: list[str]) -> None:
    """Selectors that mean the same are spelled the same, so that they share a queue."""
    assert str(parse_selector(",".join(parts))) == "arch=aarch64,kind=cpu,name=pi4-03"


@given(st.text(max_size=30) | st.text("ab/ *,=!", max_size=9).map(lambda text: f"name=devices/{text}"))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    """No text from a client breaks the parser; a parsed selector reads back the same."""
    try:
        selector = parse_selector(text)
    except InvalidRequest:
        return
    assert selector == parse_selector(str(selector))
