"""The device-tree blob that programs a region."""

from __future__ import annotations

from device_agents.drivers.zynq.overlay import make_overlay

_BY_DTC = bytes.fromhex(
    "d00dfeed000000de00000038000000b0000000280000001100000010000000000000002e0000007800000000000000000000000000000000"
    "000000010000000000000001667261676d656e7440300000000000030000000d000000002f667067612d726567696f6e0000000000000001"
    "5f5f6f7665726c61795f5f00000000030000000c0000000c666c6565742d782e62696e000000000300000000000000"
    "1a000000020000000200000002000000097461726765742d70617468006669726d776172652d6e616d65007061727469616c2d66706761"
    "2d636f6e66696700"
)
"""Output of dtc 1.6.1 for:
/dts-v1/; / { fragment@0 { target-path = "/fpga-region"; __overlay__ { firmware-name = "fleet-x.bin";
partial-fpga-config; }; }; };"""


def test_the_overlay_equals_the_output_of_dtc() -> None:
    """Byte for byte: the kernel's parser is not forgiving."""
    assert make_overlay("/fpga-region", "fleet-x.bin", is_partial=True) == _BY_DTC


def test_a_full_configuration_is_not_called_partial() -> None:
    """The property's mere presence would mark it as partial."""
    assert b"partial" not in make_overlay("/fpga-region", "fleet-x.bin")
