"""Terminal input of the dashboard that tolerates bytes other than UTF-8."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class TolerantDriver(LinuxDriver):
    """Drop input that is not UTF-8, such as a Latin-1 key or a pasted binary.

    Textual 8 decodes strictly, and its input thread ends the application with a traceback.
    """

    def run_input_thread(self) -> None:
        """Read keys until the application exits; skip chunks that cannot be decoded."""
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError:
                continue
