"""Classes of leases on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.domain.lease_class import LeaseClass
from fleet.v1 import lease_pb2

LEASE_CLASSES: Mapping[LeaseClass, lease_pb2.LeaseClass] = {
    LeaseClass.INTERACTIVE: lease_pb2.LEASE_CLASS_INTERACTIVE,
    LeaseClass.NORMAL: lease_pb2.LEASE_CLASS_NORMAL,
    LeaseClass.BATCH: lease_pb2.LEASE_CLASS_BATCH,
}
_BY_NUMBER: Mapping[int, LeaseClass] = {number: each for each, number in LEASE_CLASSES.items()}


def class_from_proto(value: int) -> LeaseClass:
    """Read a class. One that is unset, or known only to newer versions, is normal."""
    return _BY_NUMBER.get(value, LeaseClass.NORMAL)


def known_class(value: int) -> LeaseClass | None:
    """Read a class; return None for an unset one and for classes of newer versions."""
    return _BY_NUMBER.get(value)


def is_known_class(value: int) -> bool:
    """Return True for the number of a class, and for none."""
    return value in _BY_NUMBER or value == lease_pb2.LEASE_CLASS_UNSPECIFIED
