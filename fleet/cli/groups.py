"""Command groups that handle unknown subcommand names."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from fleet.base.config import nearest

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""click's, which newer versions of typer have under a name of their own."""


class ListingGroup(TyperGroup):
    """Group whose unknown subcommand becomes an argument of the hidden command `list`: `fleet devices kind=cpu`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            return "list", self.commands["list"], args
        return super().resolve_command(ctx, args)


class ShowingGroup(TyperGroup):
    """Group that refuses an unknown subcommand and names the command that shows an item: `fleet jobs tune-3`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if args and not args[0].startswith("-") and not nearest(args[0], list(self.commands)):
                refused: Any = error
                refused.message = f"{refused.message.rstrip('.')}; to see one: {ctx.command_path} show {args[0]}"
            raise
