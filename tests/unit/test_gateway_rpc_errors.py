"""Errors are encoded as TVM encodes them."""

from __future__ import annotations

import socket

import pytest

from fleet.gateway.rpc_errors import exception_message, timeout_text
from fleet.runtime.tvm_library import load_runtime


@pytest.mark.parametrize("text", ["", "x", timeout_text(3), "a bit of ünicode"])
def test_the_bytes_are_those_of_tvm(text: str) -> None:
    load_runtime()
    import tvm_ffi

    here, there = socket.socketpair()
    with here, there:
        tvm_ffi.get_global_func("rpc.ReturnException")(there.fileno(), text)
        expected = here.recv(4096)

    assert exception_message(text) == expected


def test_a_long_text_is_cut_between_characters() -> None:
    message = exception_message("é" * 5_000)

    assert message[28:].decode() == "é" * 2_000
