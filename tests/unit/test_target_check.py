"""Comparison of a target named by the user with the device, before anything is built."""

from __future__ import annotations

import json

import pytest

from cross.targets.target import parse_target, resolve_target
from fleet.domain.devices import Inventory
from fleet.errors import ArtifactRefused, InvalidRequest
from fleet.optimizer.target_check import check_device

PC = Inventory(
    kind="cpu",
    labels={"arch": "x86_64", **dict.fromkeys(("avx2", "fma", "avx", "f16c", "sse4_2"), "true")},
    target_json=json.dumps({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}),
)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("rpi4-64", "the target is for aarch64, and devices/pc is x86_64; leave --target out"),
        ("sm_90", "the target is for cuda, and devices/pc is llvm; leave --target out"),
    ],
)
def test_a_target_of_other_hardware_is_refused(target: str, words: str) -> None:
    """Before, the mismatch was found after 14 s of building."""
    with pytest.raises(InvalidRequest, match=words):
        check_device(resolve_target(target), PC, device_name="devices/pc")


def test_a_target_with_features_that_the_processor_lacks_is_refused() -> None:
    """Its kernels would end with an illegal instruction."""
    check_device(parse_target('{"kind": "llvm", "mcpu": "x86-64-v3"}'), PC, device_name="devices/pc")
    with pytest.raises(ArtifactRefused, match="avx512f"):
        check_device(parse_target('{"kind": "llvm", "mcpu": "x86-64-v4"}'), PC, device_name="devices/pc")
