"""Dialogs over the panes: a confirmation, and the list of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_BOX = """
{name} {{ align: center middle; }}
{name} > VerticalScroll {{
    width: auto; max-width: 90%; height: auto; max-height: 90%;
    border: round ansi_default; padding: 0 1; background: ansi_default;
}}
{name} Static {{ width: auto; max-width: 100%; height: auto; background: ansi_default; }}
"""


class Confirm(ModalScreen[bool]):
    """Asks for confirmation of an action. Only y confirms."""

    DEFAULT_CSS = _BOX.format(name="Confirm")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q", "answer(False)", show=False),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        keys = Text.assemble(("y", "bold"), (" yes  ", "dim"), ("n", "bold"), (" no", "dim"))
        yield VerticalScroll(Static(Text(self._question)), Static(""), Static(keys))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class Help(ModalScreen[None]):
    """Shows all keys."""

    DEFAULT_CSS = _BOX.format(name="Help") + "Help > VerticalScroll { width: 66; } Help Static { width: 100%; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark,space", "close", show=False)]

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        for key, what in self._keys:
            table.add_row(key, Text(what))
        yield VerticalScroll(Static(table, expand=True))

    def action_close(self) -> None:
        self.dismiss(None)
