"""`fleet agent bundle`: one archive with everything that a board needs to run the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.base.outputs import check_output
from fleet.cli import completion_values, options
from fleet.cli.activity import working


def bundle(
    board: Annotated[
        str,
        typer.Option(
            help="Board, as 'fleet targets' lists them, or machine: aarch64, armv7l, x86_64.",
            autocompletion=completion_values.boards,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The archive.")] = Path("agent.tar.xz"),
    python: Annotated[str, typer.Option(help="The board's Python; Debian 12 has 3.11.")] = "3.11",
    libc: Annotated[str | None, typer.Option(help="Oldest glibc to support. Default: the board's.")] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="PACKAGE", help="Add a package, such as numpy. May be repeated."),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Pack our code, TVM's runtime and the packages that an agent imports for a board: unpack there, and start.

    Packages are wheels from wherever pip gets them here, in the versions of this environment. No compiler, no numpy.

    Example: fleet agent bundle --board rpi4-64 -o agent.tar.xz; then on the board: tar xf agent.tar.xz and
    ./fleet-agent/run --tracker 10.0.0.5:9290 --allow-network
    """
    from cross.bundle.archive import make_bundle, save, spec_for

    check_output(output)
    console = options.stderr()
    spec = spec_for(board, python=python, libc=libc, extra=tuple(with_ or ()))
    with working(f"making the bundle for {spec.title}") as narrate:
        made = make_bundle(spec, narrate)
        save(made, output)
    if json:
        options.print_json({"path": str(output), "size_bytes": made.size_bytes, "digest": made.digest})
        return
    console.print(
        f"{output}: {made.size_bytes / 1e6:.1f} MB for {spec.title}, {made.userland.machine}, Python {python}"
    )
    console.print(f"on the board: tar xf {output.name} && ./fleet-agent/run --tracker HOST:PORT --allow-network")
