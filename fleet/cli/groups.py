"""A group of commands that lists something when no command is named."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class ListingGroup(TyperGroup):
    """`fleet devices kind=cpu`: a word that is no command goes to the hidden command `list`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            return "list", self.commands["list"], args
        return super().resolve_command(ctx, args)
