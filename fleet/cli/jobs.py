"""`fleet jobs submit|list|show|why|watch|cancel|resume|revert`: tuning runs, in the queue and in the library."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from fleet.base.machine import account_name
from fleet.base.plain import to_plain
from fleet.cli import completion_values, options
from fleet.cli.groups import ShowingGroup
from fleet.cli.job_file import argument_file
from fleet.cli.jobs_plan import print_plan, ranked_plan
from fleet.cli.jobs_view import job_data, print_jobs, print_summary, summary_data
from fleet.cli.json_out import print_document
from fleet.cli.options import JsonOption, LibraryOption
from fleet.cli.stored import existing_library, naming
from fleet.cli.tables import WideOption, make_console
from fleet.cli.tune_options import OF_A_RUN_HERE, Asked, with_tune_options
from fleet.cli.tune_view import print_reports
from fleet.cli.watching import readable_progress
from fleet.cli.watching import watch as watch_job
from fleet.errors import InvalidRequest
from fleet.identity.account_key import account_key_id, known_account_key_id
from fleet.jobs.fleets import destination_of
from fleet.jobs.options import TuneOptions
from fleet.library import Job, JobState, Library
from fleet.library.ownership import Caller
from fleet.optimizer.submit import submit as submit_job

app = typer.Typer(cls=ShowingGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

NameArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Its name, with or without 'jobs/'.", autocompletion=completion_values.jobs),
]

ForceOption = Annotated[
    bool, typer.Option("--force", help="Override the owner of the job: only for the owner of the library.")
]


@app.callback()
def jobs() -> None:
    """Submit tuning runs, and follow their progress.

    Example: fleet jobs submit model.onnx --on kind=cpu,arch=aarch64
    """


def _submit(wanted: TuneOptions, asked: Asked) -> None:
    """Submit a model for tuning by any free optimizer: the options are those of 'fleet tune'.

    The model's files go into the library, so they may change or vanish here. Prints the job's name and returns at once.

    Example: fleet jobs submit model.onnx --trials 512 --priority background
    """
    if asked.here_only:
        raise InvalidRequest(
            f"the optimizer that runs the job builds and searches, so {', '.join(asked.here_only)} would mean nothing; "
            "give it to: fleet optimizer serve"
        )
    with Library.open(wanted.library) as library:
        destination = asyncio.run(destination_of(wanted.tracker, wanted.selectors))
        job = submit_job(library, wanted, holder=account_name(), owner=account_key_id(), destination=destination)
        is_served = bool(library.queue.optimizers())
    if asked.as_json:
        options.print_json(job_data(job))
    else:
        print(job.name)
    if not is_served:
        there = naming(library.url)
        options.stderr().print(
            f"no optimizer runs for this library; the job waits for one: fleet optimizer serve{there}"
        )


class _SubmitCommand(TyperCommand):
    """Has the options of `fleet tune`, and shows those that apply to a submitted job."""

    def get_params(self, ctx: Any) -> Any:
        params: list[Any] = list(super().get_params(ctx))
        for param in params:
            param.hidden = param.hidden or param.name in OF_A_RUN_HERE
        return params


app.command("submit", cls=_SubmitCommand)(with_tune_options(_submit))


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Number of jobs, newest first.")] = 20,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="WORD", parser=options.tag_word, help="Only jobs with all these tags."),
    ] = None,
    library: LibraryOption = None,
    wide: WideOption = False,
    json_output: JsonOption = False,
) -> None:
    """List tuning runs, newest first.

    Example: fleet jobs list
    """
    with existing_library(library) as opened:
        found = opened.jobs(limit, tags=tag or ())
    if json_output:
        options.print_json({"jobs": [job_data(job) for job in found]})
    elif found:
        print_jobs(found, make_console(is_wide=wide))
    else:
        options.stderr().print(f"No jobs in {opened.url}.")


@app.command()
def show(
    name: NameArgument,
    output: Annotated[
        Literal["yaml"] | None,
        typer.Option("--format", help="Print the job's options instead, as a file for 'fleet tune @FILE'."),
    ] = None,
    library: LibraryOption = None,
    wide: WideOption = False,
    json_output: JsonOption = False,
) -> None:
    """Show the results of a tuning run for each workload, and its next step with the reason.

    Example: fleet jobs show 20261122-153000-ab12cd
    """
    with existing_library(library) as opened:
        summary = opened.job(_full(name))
    if output == "yaml":
        print(argument_file(summary.job), end="")
    elif json_output:
        options.print_json(summary_data(summary))
    else:
        print_summary(summary, make_console(is_wide=wide))


@app.command()
def why(
    name: NameArgument,
    library: LibraryOption = None,
    wide: WideOption = False,
    json_output: JsonOption = False,
) -> None:
    """Show a running job's planned batches: expected gain and cost, and their ranks among those of all running jobs.

    Example: fleet jobs why 20261122-153000-ab12cd
    """
    with existing_library(library) as opened:
        job = opened.queue.get(_full(name))
        running = [each for each in opened.jobs(None) if each.state is JobState.RUNNING]
    plan = ranked_plan(job, running) if job.state is JobState.RUNNING else []
    if json_output:
        options.print_json({"job": job.name, "state": job.state, "plan": to_plain(plan)})
    elif plan:
        total = sum(len(kind.plan) for each in running for kind in readable_progress(each))
        print_plan(plan, total, make_console(is_wide=wide))
    else:
        is_running = job.state is JobState.RUNNING
        cause = "it prepares its search, or is about to end" if is_running else f"it is {job.state.value.lower()}"
        options.stderr().print(f"{job.name} plans nothing: {cause}.")


@app.command()
def watch(
    name: NameArgument,
    library: LibraryOption = None,
    wide: WideOption = False,
    json_output: JsonOption = False,
) -> None:
    """Show a job live until it ends, then its report. Ctrl-C leaves the job alone.

    Example: fleet jobs watch 20261122-153000-ab12cd
    """
    with existing_library(library) as opened:
        reports = watch_job(opened, _full(name))
    if json_output:
        print_document({"reports": [report.to_json() for report in reports]}, indent=None)
        return
    print_reports(reports, make_console(is_wide=wide))


@app.command()
def cancel(
    name: NameArgument,
    force: ForceOption = False,
    library: LibraryOption = None,
    json_output: JsonOption = False,
) -> None:
    """Stop a job; its records stay, and 'fleet jobs resume' goes on with it.

    Example: fleet jobs cancel 20261122-153000-ab12cd
    """
    with existing_library(library) as opened:
        _print_job(opened.queue.cancel(_full(name), _caller(force)), json_output)


@app.command()
def resume(
    name: NameArgument,
    force: ForceOption = False,
    library: LibraryOption = None,
    json_output: JsonOption = False,
) -> None:
    """Put a job that was cancelled, failed or interrupted into the queue again.

    Example: fleet jobs resume 20261122-153000-ab12cd
    """
    with existing_library(library) as opened:
        _print_job(opened.queue.resume(_full(name), _caller(force)), json_output)


@app.command()
def revert(
    name: NameArgument,
    undo: Annotated[bool, typer.Option("--undo", help="Use the job's records again.")] = False,
    force: ForceOption = False,
    library: LibraryOption = None,
    json_output: JsonOption = False,
) -> None:
    """Exclude a job's records from builds of models and from learning.

    They stay in the library.

    Example: fleet jobs revert 20261122-153000-ab12cd
    """
    with existing_library(library) as opened:
        _print_job(opened.queue.revert(_full(name), _caller(force), is_undone=undo), json_output)


def _print_job(job: Job, json_output: bool) -> None:
    """Print a job after a change of its state."""
    if json_output:
        options.print_json(job_data(job))
        return
    state = "is asked to stop" if job.is_stop_asked else f"is {job.state.value.lower()}"
    reverted = ", and its records are used for nothing" if job.reverted_at else ""
    options.stderr().print(f"{job.name} {state}{reverted}")


def _caller(is_forced: bool) -> Caller:
    return Caller(key_id=known_account_key_id(), is_forced=is_forced)


def _full(name: str) -> str:
    return name if name.startswith("jobs/") else f"jobs/{name}"
