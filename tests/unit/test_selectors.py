"""Selectors match devices by their labels."""

from __future__ import annotations

import io
import re
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.devices import DeviceStatus, Inventory
from fleet.domain.inventory_labels import automatic_labels
from fleet.domain.narrowing import ClauseCount, narrow, narrowing_text
from fleet.domain.quantities import read_quantity, size_text
from fleet.domain.selectors import check_comparable, device_labels, labels_of, parse_selector, selector_text
from fleet.errors import InvalidRequest

PI = device_labels(
    "devices/pi4-03",
    "cpu",
    {"arch": "aarch64", "model": "Raspberry Pi 4", "mem": "7808MiB", "cores": "4", "tvm": "0.27.0.post1", "sm": "sm_90"}
    | {"driver": "535.104.05", "fan": "none", "rack": "2.5", "disk": "64GB"},
)
NEW_FORMS = ("mem>=2GiB", "cores>4", "cores<4", "tvm>=0.27", "x<=1", "arch=aarch64|armv7l", "fpga!=none", "fpga=none")
RELEASES = sorted((Path(__file__).parent.parent / "golden/releases").glob("*.tar.xz"))

_VALUES = st.text("ab1*", min_size=1, max_size=3) | st.just("none")
_LIMITS = st.from_regex(
    r"[0-9]{1,3}(\.[0-9]{1,3})?(|GiB|MiB|kB|B)|[0-9]{1,3}(\.[0-9]{1,3}){2,3}(rc1)?",
    fullmatch=True,
    alphabet=st.characters(codec="ascii"),
)
_CLAUSES = (
    st.builds("{}{}{}".format, st.sampled_from("ab"), st.sampled_from(["=", "!=", "=="]), _VALUES)
    | st.builds("{}={}|{}".format, st.sampled_from("ab"), _VALUES, _VALUES)
    | st.builds("{}!={}|{}".format, st.sampled_from("ab"), _VALUES, _VALUES)
    | st.builds("{}{}{}".format, st.sampled_from("abc"), st.sampled_from(["<", "<=", ">", ">="]), _LIMITS)
)
_TEXTS = st.lists(_CLAUSES, min_size=1, max_size=4).map(",".join)


@pytest.mark.parametrize(
    "text",
    ["*", "cpu", "kind=cpu", "name=pi4-03", "name=devices/pi4-03", "arch=aarch64,cpu", "model=Raspberry*",
     "arch!=x86_64", "gpu!=mali", " cpu , arch = aarch64".replace(" = ", "="), "arch=armv7l|aarch64",
     "name=pi3|devices/pi4-03", "model=Jetson*|Rasp*", "arch!=x86_64|riscv64", "fpga=none", "fan=none", "arch!=none",
     "fpga=none|xc7z020", "mem>=7.5GiB", "mem>8GB", "mem<8GiB", "cores>=4", "cores<=4.0", "cores<5", "tvm>=0.27",
     "tvm>0.9", "tvm<0.27.1", "tvm>=0.27.0rc1", "tvm>=0.27.dev3", "sm>=80", "sm=sm_90", "driver>=535", "rack>2.25",
     "disk>59GiB", "mem> 2GiB"],
)  # fmt: skip
def test_a_device_is_matched(text: str) -> None:
    """Shorthand, equality, wildcards, negation, alternatives and comparisons all find the board they describe."""
    assert parse_selector(text).matches(PI)


@pytest.mark.parametrize(
    "text",
    ["cuda", "arch=x86_64", "name=pi4", "gpu=mali", "kind!=cpu", "cpu,arch=x86_64", "arch=x86_64|armv7l",
     "arch!=aarch64|armv7l", "fpga!=none", "fan!=none", "arch=none", "mem>=8GiB", "mem<2GiB", "cores>4", "cores<4",
     "tvm>=0.28", "tvm<0.27", "tvm<=0.27", "sm>90", "driver>=535.104.6", "gpus>=1", "gpus<1", "rack>=2.50GiB",
     "rack>=2.4.9", "fan>=3", "disk<64", "name=pi3|pi5"],
)  # fmt: skip
def test_another_device_is_not(text: str) -> None:
    """One condition that does not hold is enough; an absent or incomparable label equals and exceeds nothing."""
    assert not parse_selector(text).matches(PI)


@pytest.mark.parametrize(
    ("text", "character", "problem"),
    [
        ("", 1, "a condition is missing"),
        (",", 1, "a condition is missing"),
        ("cpu,", 5, "a condition is missing"),
        ("cpu, ,x=1", 6, "a condition is missing"),
        ("=x", 1, "expected a label"),
        ("Arch=x", 1, "expected a label"),
        ("cpu,Arch=x", 5, "expected a label"),
        ("٤=x", 1, "expected a label"),
        ("two words", 4, "expected =, !=, <, <=, > or >="),
        ("cpu|cuda", 4, "expected =, !=, <, <=, > or >="),
        ("a!x", 2, "expected =, !=, <, <=, > or >="),
        ("a=b=c", 4, "unexpected '='"),
        ("a===b", 4, "unexpected '='"),
        ("a>>2", 3, "unexpected '>'"),
        ("a=>2", 3, "unexpected '>'"),
        ("cpu, a<>2", 8, "unexpected '>'"),
        ("a=", 3, "a value is missing"),
        ("a=|b", 3, "a value is missing"),
        ("a=b||c", 5, "a value is missing"),
        ("a=b|", 5, "a value is missing"),
        ("name=devices/", 6, "a value is missing"),
        ("name=devices/devices/a", 6, "a name has 'devices/' once"),
        ("a=\udce9", 3, "control characters"),
        ("a=\x1b[31m", 3, "control characters"),
        ("a=b\nc", 4, "control characters"),
        ("mem>=2Gib", 6, "'mem' is a size in B, kB,"),
        ("mem>=2", 6, "'mem' is a size"),
        ("mem>=-2GiB", 6, "'mem' is a size"),
        ("cpu, mem>= 2KB", 12, "'mem' is a size"),
        ("cores>4GiB", 7, "'cores' is a number"),
        ("cores>=٤", 8, "'cores' is a number"),
        ("cores>=1|2", 8, "'cores' is a number"),
        ("cores>", 7, "'cores' is a number"),
        ("tvm>=new", 6, "'tvm' is a version, like 0.27.0"),
        ("arch>=5", 5, "'arch' is text"),
        ("name<5", 5, "'name' is text"),
        ("rack>=nan", 7, "expected a number"),
        ("rack>=inf", 7, "expected a number"),
        ("rack>=1e3", 7, "expected a number"),
        ("rack>=1_000", 7, "expected a number"),
        ("rack>=" + "9" * 400, 7, "expected a number"),
        ("rack>=.5", 7, "expected a number"),
        ("mem>=99999999999TiB", 6, "'mem' is a size"),
        ("rack>=aarch64", 7, "expected a number"),
    ],
)
def test_an_invalid_selector_is_refused_at_the_character(text: str, character: int, problem: str) -> None:
    """The message names the character and shows good selectors, on one short line."""
    with pytest.raises(InvalidRequest) as refusal:
        parse_selector(text)

    message = str(refusal.value)
    assert f", character {character}: {problem}" in message
    assert "write it like 'cpu', 'arch!=aarch64' or 'mem>=2GiB'" in message
    assert message.isprintable()
    assert len(message) < 320


@pytest.mark.parametrize(
    "text", [",".join(["cores>4"] * 10_000), "x=" + "a" * 1_000_000, "a!=" + "|".join(map(str, range(900)))]
)
def test_a_huge_selector_is_refused_in_a_short_sentence(text: str) -> None:
    """Neither the work nor the message grows with it."""
    with pytest.raises(InvalidRequest, match=r"^a selector of \d+ characters is too long; at most 4000 are read$"):
        parse_selector(text)


@given(st.permutations(["cpu", "arch=aarch64", "name=pi4-03", "kind=cpu"]))
def test_order_and_repeats_do_not_count(parts: list[str]) -> None:
    """Selectors that mean the same are spelled the same, so that they share a queue."""
    assert str(parse_selector(",".join(parts))) == "arch=aarch64,kind=cpu,name=pi4-03"


@pytest.mark.parametrize(
    ("canonical", "texts"),
    [
        ("mem>=2GiB", ["mem>=2048MiB", "mem>=2.0GiB", "mem>= 2147483648B", "mem>=02GiB"]),
        ("mem>=2GB", ["mem>=2000MB", "mem>=2000000kB"]),
        ("cores>4", ["cores>4.0", "cores>04"]),
        ("rack>=2.5", ["rack>=2.50"]),
        ("tvm>=0.27", ["tvm>=0.27.0", "tvm>=00.27.00"]),
        ("tvm>0.27.post1", ["tvm>0.27.0.post1", "tvm>0.27post1+cu12"]),
        ("firmware<1.2.0", ["firmware<1.2.0.0", "firmware<1.02.00"]),
        ("arch==aarch64|armv7l", ["arch=armv7l|aarch64", "arch=aarch64|armv7l|aarch64"]),
        ("arch=aarch64", ["arch==aarch64", "arch=aarch64|aarch64"]),
        ("arch!=a,arch!=b", ["arch!=b|a", "arch!=b,arch!=a|b"]),
        ("fpga!==none", ["fpga!=none"]),
        ("arch==none|x", ["arch=x|none"]),
    ],
)
def test_equal_selectors_have_one_canonical_text(canonical: str, texts: list[str]) -> None:
    """Units, zeros, order and repeats are normalized."""
    assert {str(parse_selector(text)) for text in [canonical, *texts]} == {canonical}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("arch==aarch64|armv7l,kind=cpu", "arch=aarch64|armv7l,kind=cpu"),
        ("cpu, mem>=2GiB", "cpu, mem>=2GiB"),
        ("board~rpi4", "board~rpi4"),
    ],
)
def test_a_selector_is_shown_as_users_write_it(text: str, shown: str) -> None:
    """Canonical alternatives lose their second "="; a text that is not canonical, or no selector, stays."""
    assert selector_text(text) == shown


def test_numbers_and_versions_of_the_same_digits_differ() -> None:
    """1.10 is less than 1.9 as a number, and more as a version."""
    assert parse_selector("rack<1.9").matches({"rack": "1.10"})
    assert parse_selector("tvm>1.9").matches({"tvm": "1.10"})
    assert parse_selector("firmware>1.9.0").matches({"firmware": "1.10.0"})


@given(st.text(max_size=30) | st.text("ab/ *,=!<>|1.", max_size=9).map(lambda text: f"name=devices/{text}") | _TEXTS)
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    """No text from a client breaks the parser; a parsed selector reads back the same."""
    try:
        selector = parse_selector(text)
    except InvalidRequest:
        return
    assert selector == parse_selector(str(selector))
    assert str(parse_selector(str(selector))) == str(selector)


@given(_TEXTS, st.dictionaries(st.sampled_from("abc"), _VALUES | _LIMITS, max_size=3))
def test_canonical_text_matches_the_same_devices(text: str, labels: dict[str, str]) -> None:
    """The tracker gets the canonical text; users mean theirs."""
    selector = parse_selector(text)

    assert parse_selector(str(selector)).matches(labels) == selector.matches(labels)
    assert selector.matches(labels) == all(parse_selector(part).matches(labels) for part in text.split(","))


@given(_LIMITS, _LIMITS)
def test_quantities_are_equal_if_their_texts_are(one: str, other: str) -> None:
    """The canonical text identifies a quantity."""
    first, second = read_quantity(one), read_quantity(other)
    if first is None or second is None:
        return
    assert (first.text == second.text) is (first.unit is second.unit and first.value == second.value)
    assert read_quantity(first.text) == first


@given(st.integers(0, 2**64 - 1))
def test_a_size_reads_back_exactly(size_bytes: int) -> None:
    """Sizes of inventories become labels and come back."""
    found = read_quantity(size_text(size_bytes))

    assert found is not None
    assert found.value == size_bytes


def test_the_inventory_is_labels_by_itself() -> None:
    """Memory, cores, TVM's version and scalar target attributes; a label of the agent goes first."""
    target = '{"kind":"cuda","arch":"sm_90","max_num_threads":1024,"keys":["cuda"],"host":{"kind":"llvm"},"odd":"a b"}'
    inventory = Inventory(
        labels={"arch": "x86_64", "cores": "7"},
        target_json=target,
        memory_bytes=85_520_809_984,
        core_count=132,
        tvm_version="0.27.0.post1",
    )

    found = labels_of(DeviceStatus(name="devices/h100", inventory=inventory))

    expected = {"arch": "x86_64", "cores": "7", "mem": "79GiB", "tvm": "0.27.0.post1", "sm": "sm_90"}
    assert found == expected | {"max_num_threads": "1024", "name": "h100", "kind": ""}


@pytest.mark.parametrize("target", ["", "llvm", "[1]", "{", "[" * 10_000, '{"a":NaN,"B":1,"name":"x","c":null}'])
def test_an_inventory_of_any_target_has_labels(target: str) -> None:
    """A target without attributes adds no labels."""
    assert set(automatic_labels(Inventory(target_json=target, tvm_version="0, 1"))) <= {"a"}


def test_equal_boards_have_equal_memory_labels() -> None:
    """Boards differ by some pages; a label of the exact memory would make each a class of its own."""
    memories = [8_188_000_000 + pages * 4096 for pages in (0, 17, 301)]

    labels = {automatic_labels(Inventory(memory_bytes=memory))["mem"] for memory in memories}

    assert labels == {"7808MiB"}


@given(st.integers(1, 2**64 - 1))
def test_a_memory_label_loses_less_than_two_percent(memory_bytes: int) -> None:
    """It is never more than the board has."""
    found = read_quantity(automatic_labels(Inventory(memory_bytes=memory_bytes))["mem"])

    assert found is not None
    assert isinstance(found.value, int)
    assert 0.98 * memory_bytes < found.value <= memory_bytes


def test_clauses_count_the_devices_that_they_leave() -> None:
    """Equalities first, then comparisons, then negations, up to the clause that leaves none."""
    big, small = {"arch": "aarch64", "mem": "8GiB"}, {"arch": "aarch64", "mem": "4GiB"}
    fleet = [(big, 12), (small, 28), ({"arch": "x86_64", "fpga": "xc7z020"}, 160)]

    counts = narrow(parse_selector("fpga!=none,mem>=8GiB,arch=aarch64,zoo!=a"), fleet)

    assert counts == [ClauseCount("arch=aarch64", 40), ClauseCount("mem>=8GiB", 12), ClauseCount("fpga!=none", 0)]
    assert narrowing_text(counts, 200) == "arch=aarch64: 40 of 200; mem>=8GiB: 12 of these; fpga!=none: none"
    assert narrowing_text(counts[2:], 200) == "fpga!=none: none of 200"


@pytest.mark.parametrize(
    ("text", "value", "described"),
    [
        ("rack>=3", "a", "the text 'a'"),
        ("rack>=3", "2GiB", "the size '2GiB'"),
        ("rack>=3GiB", "3", "the number '3'"),
        ("rack>=3", "1.2.3", "the version '1.2.3'"),
    ],
)
def test_a_comparison_that_no_label_allows_is_an_error(text: str, value: str, described: str) -> None:
    """One comparable device is enough. A label that every device lacks is not a mistake."""
    selector = parse_selector(text)

    with pytest.raises(InvalidRequest, match=re.escape(f"'rack' is one on no device; it is {described}")):
        check_comparable(selector, [{"rack": value}, {}])
    check_comparable(selector, [{"rack": value}, {"rack": text.partition("=")[2]}])
    check_comparable(selector, [{}, {"shelf": value}])
    check_comparable(selector, [])


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_older_trackers_refuse_new_forms(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of a kept release refuses their canonical texts in a sentence, and reads all others as before."""
    with tarfile.open(release) as archive:
        (member,) = [one for one in archive.getmembers() if one.name.endswith("fleet/domain/selectors.py")]
        source = archive.extractfile(member)
        assert source is not None
        older = ModuleType("older_selectors")
        monkeypatch.setitem(sys.modules, older.__name__, older)  # dataclasses look their module up
        exec(io.TextIOWrapper(source, encoding="utf-8").read(), older.__dict__)  # noqa: S102

    for text in NEW_FORMS:
        with pytest.raises(InvalidRequest, match="cannot read"):
            older.parse_selector(str(parse_selector(text)))
    for text in ("*", "cpu", "arch!=a|b", "model=Rasp*,name=devices/a", "a=b,arch!=c,kind=cpu"):
        assert str(older.parse_selector(str(parse_selector(text)))) == str(parse_selector(text))
