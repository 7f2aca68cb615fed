"""Texts from users, on command lines and in YAML."""

from __future__ import annotations

import contextlib

from device_agents.config import make_drivers, parse_config
from device_agents.fabric.reader import check_registers
from fleet.base.config import parse_yaml
from fleet.base.yaml_text import read_text
from fleet.cli.shapes import parse_shapes
from fleet.domain.keys import canonical_target, trace_digest
from fleet.domain.narrowing import narrow
from fleet.domain.selectors import device_labels, parse_selector
from fleet.errors import ConfigError, DeviceError, InvalidRequest, NotAllowed
from fleet.identity.join_tokens import JoinToken, parse_join_token
from fleet.tracker.policy_file import read_policy
from fleet.tracker.reloading import compare
from fleet.web.forms import booking_in, parse_form, reason_in
from fleet.web.sessions import Right, Sessions, make_token
from tests.fuzz.target import Target, no_loop
from tests.fuzz.targets.places import written

_PI = device_labels(
    "devices/pi4-03",
    "cpu",
    {"arch": "aarch64", "model": "Raspberry Pi 4", "mem": "7808MiB", "cores": "4", "tvm": "0.27.0.post1"},
)
_NOW_SEC = 1_800_000_000.0
_FABRIC = b"""name: gemm_i8
clock_hz: 100_000_000
window: {uio: fabric, size_bytes: 0x4000}
identity: {register: id, value: 0x474d4938}
registers:
  ctrl: {offset: 0x00}
  id: {offset: 0x04, access: ro}
  m: {offset: 0x0c, width: 10}
buffers:
  a: {offset: 0x1000, size_bytes: 4096}
  big: {udmabuf: udmabuf0, offset: 0, size_bytes: 65536}
reset:
  - {write: ctrl, value: 2}
functions:
  gemm_i8:
    parameters:
      - {name: a, type: tile, dtype: int8, rows: m, columns: 64, stride: 64}
      - {name: m, type: int, min: 1, max: 64}
    steps:
      - {copy_in: a, buffer: a}
      - {write: m, value: m}
      - {wait: ctrl, mask: 1, equals: 0, timeout_ms: 1000}
"""
_TRACKER = b"""half_life: 6h
classes:
  interactive: {leases: 2, longest: 2h}
  batch: {device_hours_per_day: 200.5}
accounts:
  ci: &ci {weight: 3, normal: {leases: 8, longest: unlimited}}
  "12": {<<: *ci, weight: 0.5}
"""
_AGENT = b"""devices:
  - driver: simulated
    name: bench
    count: 2
    labels: {rack: 3}
    facts: {bought: 2026-03}
tracker: 10.0.0.5:9290
advertise_address: "[::1]:9291"
cache_max_bytes: 2147483648
jail: auto
"""


def _text(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def _select(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        selector = parse_selector(_text(content))
        again = parse_selector(str(selector))
        assert again == selector
        assert str(again) == str(selector)
        assert again.matches(_PI) == selector.matches(_PI)
        narrow(selector, [(_PI, 1)])


def _shape(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_shapes(_text(content).split("\n"))


def _join(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_join_token(_text(content))


def _key(content: bytes) -> None:
    for read in (canonical_target, trace_digest):
        with contextlib.suppress(InvalidRequest):
            read(content.decode(errors="replace"))


def _agent_yaml(content: bytes) -> None:
    with contextlib.suppress(ConfigError, DeviceError):
        values, place = parse_yaml(read_text(written("agent.yaml", content)), where="agent.yaml")
        config = parse_config(values, where=place)
        # Other drivers search for hardware, and count sets the number of simulated devices.
        entries = [entry for entry in config.devices or [] if isinstance(entry, dict)]
        if all(entry.get("driver") == "simulated" and str(entry.get("count", 1)) < "5" for entry in entries):
            make_drivers(config, where=place, host_name="here")


def _tracker_yaml(content: bytes) -> None:
    with contextlib.suppress(ConfigError):
        policy = read_policy(written("tracker.yaml", content), is_required=True)
        assert policy.half_life_sec > 0.0
        assert not compare(policy, policy, path="").is_changed


def _fabric(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        check_registers(_text(content), [range(2**30, 2**31)])


def _web_form(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        form = parse_form(content)
        assert reason_in(form).isprintable()
        selector, starts_at_sec, length_sec, count = booking_in(form, _NOW_SEC)
        assert parse_selector(selector)
        assert starts_at_sec >= _NOW_SEC
        assert length_sec > 0
        assert count > 0


def _web_link(content: bytes) -> None:
    with contextlib.suppress(NotAllowed):
        Sessions("secret").open(_text(content), _NOW_SEC)
        raise AssertionError("a link was forged")


_HOOKS = (
    b"devices: [{driver: simulated, before_lease: {command: [/bin/true, x], timeout_sec: 3}, "
    b"power_cycle: {command: [a]}}]"
)

TEXTS = [
    Target(
        name="web_form",
        run=no_loop(_web_form),
        seeds=lambda: [
            b"csrf=x&selector=board%3Drpi4&start=2027-01-20T14%3A00&hours=1.5&count=2",
            b"csrf=x&selector=cpu&start=2h&hours=2&count=1&reason=new+SD%20card",
        ],
        words=(b"&", b"=", b"%", b"+", b"%00", b"%ff", b"nan", b"inf", b"1e999", b"-1", b"start=", b"hours="),
        large_bytes=16 * 1024,
    ),
    Target(
        name="web_link",
        run=no_loop(_web_link),
        seeds=lambda: [make_token("other", Right.ACT, _NOW_SEC).encode()],
        words=(b".", b"act", b"read", b"1800000600", b"..."),
        large_bytes=4096,
    ),
    Target(
        name="selector",
        run=no_loop(_select),
        seeds=lambda: [
            *(b"cpu", b"kind=cpu,arch!=x86_64", b"*", b"name=devices/pi4-03, model=Rasp*[a-c]?y*,gpu!=x"),
            *(b"mem>=2GiB,cores>4,tvm<0.28.0rc1", b"arch=aarch64|armv7l,fpga!=none", b"model<=1.50,model>1.2.0.0"),
        ],
        words=(
            *(b"*", b"!=", b"=", b",", b"kind", b"name=devices/", b"[!", b"]", b"?", b"*a*a*a*a*b", b"|", b"<=", b">"),
            *(b"mem", b"GiB", b"kB", b"tvm", b"none", b"0.0", b".post1", b"99999999999999999999", b"!==", b"=="),
        ),
        large_bytes=4096,  # the tracker takes 1,000 characters
        quick_inputs=300,
    ),
    Target(
        name="shape",
        run=no_loop(_shape),
        seeds=lambda: [b"data=1,3,224,224", b"ids=1,64\nmask=1,64\nids=2,64\nmask=2,64"],
        words=(b"=", b",", b"\n", b"data=", b"-", b"+1", b" "),
        quick_inputs=1000,
    ),
    Target(
        name="join_token",
        run=no_loop(_join),
        seeds=lambda: [str(JoinToken(secret=bytes(16), pin=bytes(range(32)))).encode()],
        words=(b"fleet1.", b".", b"=", b"-", b"_"),
        quick_inputs=1000,
    ),
    Target(
        name="target_and_trace",
        run=no_loop(_key),
        seeds=lambda: [
            b"llvm",
            b'{"kind":"cuda","arch":"sm_80","max_num_threads":1024,"host":{"kind":"llvm"},"keys":["cuda"]}',
            b'[[["SBlockGetBlock",[],["b0","root"],[]],["Split",["l1",null,2],[1,1],[]]],[[1,[1.5,true]]]]',
        ],
        words=(b'"kind":', b"Infinity", b"NaN", b"1e400", b"true", b"null", b"[", b"{", b'"feature.', b"\\ud800"),
        quick_inputs=500,
    ),
    Target(
        name="agent_yaml",
        run=no_loop(_agent_yaml),
        seeds=lambda: [_AGENT, b"{}", b"devices: [{driver: cpu, facts: {a: [1, {b: 2}]}}]", _HOOKS],
        words=(
            b"!!python/object:os.system ",
            b"&a ",
            b"*a",
            b"<<: ",
            b"? ",
            b": ",
            b"- ",
            b"!!binary ",
            b"2001-01-01",
            b"0x",
            b".inf",
            b"driver:",
            b"labels:",
            b"facts:",
            b"!!float ",
            b"!!set ",
            b"!!timestamp ",
        ),
        large_bytes=4096,  # its owner's own file
        quick_inputs=30,
    ),
    Target(
        name="tracker_yaml",
        run=no_loop(_tracker_yaml),
        seeds=lambda: [_TRACKER, b"{}", b"starvation: 1.5d"],
        words=(
            b"!!python/object:os.system ",
            b"&a ",
            b"*ci",
            b"<<: ",
            b"? ",
            b"!!float ",
            b"!!set ",
            b"0x",
            b".inf",
            b".nan",
            b"6:30",
            b"unlimited",
            b"weight:",
            b"leases:",
            b"interactive:",
        ),
        large_bytes=4096,  # its owner's own file
        quick_inputs=30,
    ),
    Target(
        name="fabric_description",
        run=no_loop(_fabric),
        seeds=lambda: [_FABRIC],
        words=(b"!!python/object:os.system ", b"&a ", b"*a", b"<<: ", b"- ", b"{", b"[", b"0x", b"udmabuf: ", b"mem: "),
        quick_inputs=60,
    ),
]
