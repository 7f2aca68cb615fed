"""Supported pairs of TVM and its FFI."""

from __future__ import annotations

import pytest

from fleet.domain.tvm_versions import KNOWN_PAIRS, check_pair, check_versions
from fleet.errors import ConfigError


def test_the_installed_pair_is_a_known_one() -> None:
    """The constraints of this repository and the check agree."""
    check_versions()


@pytest.mark.parametrize(
    ("tvm", "ffi", "text"),
    [
        (None, None, "apache-tvm and apache-tvm-ffi not installed"),
        ("0.27.0.post1", None, "apache-tvm-ffi not installed"),
        ("0.27.0.post1", "0.1.15.post2", "crashes with apache-tvm 0.27.0.post1"),
        ("0.20.0", "0.1.14.post1", "none of the tested versions"),
    ],
)
def test_unsupported_version_pairs_are_refused_with_the_command(tvm: str | None, ffi: str | None, text: str) -> None:
    """The message holds the command."""
    with pytest.raises(ConfigError, match=text) as caught:
        check_pair(tvm, ffi)

    assert f"apache-tvm-ffi=={KNOWN_PAIRS['0.27.0.post1']}" in str(caught.value)
