"""Errors are documented, and their classes mark retryable ones and mistakes of the caller."""

from __future__ import annotations

import re

import pytest

from fleet import errors
from fleet.errors import FleetError, error_classes


def test_the_docstring_draws_every_class() -> None:
    """The tree in the module's docstring is the tree in the code: names and depths."""
    drawn = {
        match[2]: len(match[1]) // 2
        for match in re.finditer(r"^    ( *)([A-Z]\w+)(?:,| |$)", errors.__doc__ or "", flags=re.MULTILINE)
    }
    drawn |= {"NotFound": 1, "AlreadyExists": 1}

    assert {name: len(cls.__mro__) - 4 for name, cls in error_classes().items()} == drawn


@pytest.mark.parametrize("cls", error_classes().values(), ids=lambda cls: cls.__name__)
def test_every_error_class_has_retryability_and_exit_code(cls: type[FleetError]) -> None:
    """Only temporary errors are retryable, and only the caller's mistakes have exit code 2."""
    mistakes = (errors.ConfigError, errors.InvalidRequest, errors.ImportFailed, errors.NoLibrary)
    assert {errors.WaitTimeout: 124}.get(cls, 2 if issubclass(cls, mistakes) else 1) == cls.exit_code
    unavailable = (errors.TrackerUnavailable, errors.BuildersUnavailable, errors.OptimizerUnavailable)
    retryable = (errors.LimitReached, errors.QueueFull, errors.DeviceUnreachable, *unavailable)
    assert issubclass(cls, retryable) is cls.is_retryable
    assert cls.__doc__
