"""`fleet completion SHELL`: prints a shell's completion script.

The shell asks this program: flags and commands are those of the installed version, names those of the fleet that is
configured. See `fleet.cli.completion_values`.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Annotated, NoReturn

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

from fleet.cli import completion_values

VARIABLE = "_FLEET_COMPLETE"
"""Variable that a shell sets for completion; made of the program's name, by typer."""

# typer's own script breaks at the = of a selector, as bash splits words there. Ours passes the whole line, and returns
# the part of each answer after the last break.
_BASH = f"""\
_fleet_completion() {{
    local line=${{COMP_LINE:0:COMP_POINT}} current=${{COMP_WORDS[COMP_CWORD]}} IFS=$'\\n' word before answer
    word=${{line##*[[:space:]]}}
    [[ $current == [=:] ]] && current=
    before=${{word%"$current"}}
    COMPREPLY=()
    for answer in $(
        export {VARIABLE}=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=$line
        "$1" 2>/dev/null
    ); do
        answer=${{answer%%$'\\t'*}}
        COMPREPLY+=("${{answer#"$before"}}")
    done
    [[ ${{COMPREPLY[0]-}} == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}}
complete -o default -F _fleet_completion fleet
"""


OF_JOBS = frozenset({"jobs show", "jobs watch", "jobs why", "jobs cancel", "jobs resume", "jobs revert", "report"})
"""Commands with a job as their argument."""


class Shell(StrEnum):
    """A shell that completion supports."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_choices=False)],
) -> None:
    """Print the script that completes commands, flags, and the names of devices, jobs and boards in your shell.

    For bash, add this to ~/.bashrc: eval "$(fleet completion bash)". For zsh: eval "$(fleet completion zsh)" in
    ~/.zshrc, after compinit. For fish: fleet completion fish > ~/.config/fish/completions/fleet.fish.

    Example: fleet completion bash > ~/.local/share/bash-completion/completions/fleet
    """
    if shell is Shell.BASH:
        print(_BASH, end="")
        return
    print(get_completion_script(prog_name="fleet", complete_var=VARIABLE, shell=shell.value))


def answer_shell() -> NoReturn:
    """Print completions for a shell: without messages on stderr, and without waiting for threads that still query
    others."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    code = 1
    try:
        completion_init()
        if wants_job(os.environ.get("_TYPER_COMPLETE_ARGS", "")):
            offer_jobs()
        from fleet.cli.main import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except Exception:  # noqa: BLE001 a shell has no use for it
        code = 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def wants_job(line: str) -> bool:
    """Tell whether a line ends where only a job name fits: answering without importing the commands is faster."""
    *words, last = f"{line}|".split()
    return " ".join(words[1:]) in OF_JOBS and not last.startswith("-")


def offer_jobs() -> None:
    """Complete job names only, as the commands would."""
    only = typer.Typer(add_completion=False)

    @only.command()
    def _words(words: Annotated[list[str], typer.Argument(autocompletion=completion_values.jobs)]) -> None:
        """Placeholder for the commands."""

    only(prog_name="fleet")
