"""Frames between the agent and its workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agents.machine import frames


@given(st.binary(max_size=1000))
def test_frames_start_with_their_length(content: bytes) -> None:
    """A frame is a header with the length, and the content."""
    frame = frames.format_frame(content)

    assert frames.parse_header(frame[:4]) == len(content)
    assert frame[4:] == content


def test_a_length_that_cannot_be_is_refused() -> None:
    """Garbage on the socket does not make the agent wait for gigabytes."""
    with pytest.raises(frames.BrokenFrame):
        frames.parse_header(b"\xff\xff\xff\xff")
