"""`fleet targets`: the supported boards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from cross.targets.boards import Board, find_board, load_boards
from fleet.cli import completion_values, options
from fleet.cli.groups import ShowingGroup
from fleet.cli.tables import make_console, text_table

app = typer.Typer(cls=ShowingGroup, invoke_without_command=True, add_completion=False)


@app.callback()
def targets(ctx: typer.Context, json_output: options.JsonOption = False) -> None:
    """List the boards that can be built for.

    A name goes wherever a target is asked for: fleet build matmul-256 --target rpi4-64.

    Example: fleet targets
    """
    if ctx.invoked_subcommand is not None:
        return
    boards = list(load_boards().values())
    if json_output:
        options.print_json({"targets": list(map(board_data, boards))})
    else:
        make_console(is_wide=False).print(_table(boards))


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="The board, as 'fleet targets' lists it.", autocompletion=completion_values.boards)
    ],
    json_output: options.JsonOption = False,
) -> None:
    """Show one board with its TVM target and where its numbers come from.

    Example: fleet targets show jetson-orin --json
    """
    board = find_board(name)
    if json_output:
        options.print_json(board_data(board))
    else:
        make_console(is_wide=False).print(_one(board))


def board_data(board: Board) -> dict[str, object]:
    """Return all facts about a board as JSON data, including its whole TVM target."""
    return {
        "name": board.name,
        "title": board.title,
        "kind": board.kind,
        "target": board.target,
        **{key: value for key, value in asdict(board).items() if key not in ("gpu", "mcpu", "mattr")},
    }


def short_target(board: Board) -> str:
    """Return a target in a few words: "opencl adreno", "llvm cortex-a72"."""
    target = board.target
    which = target.get("arch") or target.get("mcpu") or target.get("device") or ""
    return f"{target['kind']} {which}".strip()


def _table(boards: list[Board]) -> Table:
    table = text_table("name", "title", "kind", "arch", "target", whole=["name"])
    for board in boards:
        table.add_row(Text(board.name), Text(board.title), board.kind, board.arch or "any", Text(short_target(board)))
    return table


def _one(board: Board) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    data = board_data(board)
    rows = {
        **{key: str(data[key]) for key in ("name", "title", "kind", "arch", "triple", "libc", "features") if data[key]},
        "cores": str(board.cores or ""),
        "memory": f"{board.memory_mb} MB" if board.memory_mb else "",
        "target": board.target_json,
        "recognised by": ", ".join(f"{key} {value}" for key, value in asdict(board.recognise).items() if value),
        "sources": "\n".join(board.sources),
    }
    for key, value in rows.items():
        if value:
            table.add_row(key, Text(value))
    return table
