"""Facts about jobs for `fleet status` that the tracker lacks: those of their library, if it is accessible.

SQLAlchemy and the optimizer are loaded with the first look, when the fleet has long been on the screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from fleet.base.settings import look_up
from fleet.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from fleet.library import Library


class LibraryJobs:
    """Access to a library's jobs. Opens the library anew for each call, so that any thread may call."""

    def __init__(self, url_or_path: str | None) -> None:
        """Open nothing yet. `url_or_path`: None for the configured library, else the user's own."""
        self._url_or_path = url_or_path

    def look(self, job_name: str, width: int) -> RenderableType:
        """Return the output of `fleet jobs show`.

        Raises:
            FleetError: this library does not have the job, or cannot be used.
        """
        with self._library(job_name) as library:
            from fleet.cli.jobs_view import summary_view
            from fleet.cli.terminal import Clean

            return Clean(Group(*summary_view(library.job(job_name), width)))

    def cancel(self, job_name: str) -> str:
        """Stop a job as `fleet jobs cancel` does; return the result.

        Raises:
            FleetError: this library does not have the job, or it cannot be stopped from here.
        """
        with self._library(job_name) as library:
            from fleet.identity.account_key import known_account_key_id
            from fleet.library.ownership import Caller

            job = library.queue.cancel(job_name, Caller(key_id=known_account_key_id()))
        return f"{job.name} {'is asked to stop' if job.is_stop_asked else f'is {job.state.value.lower()}'}"

    @contextmanager
    def _library(self, job_name: str) -> Iterator[Library]:
        elsewhere = f"{job_name} is not in this library; name its own with: fleet status --library URL"
        setting = look_up("library", self._url_or_path)
        if setting.asked is None and not Path(setting.value).exists():  # reading must not create a library
            raise NotFound(elsewhere)
        try:
            from fleet.cli.stored import existing_library

            with existing_library(self._url_or_path) as library:
                yield library
        except NotFound:
            raise NotFound(elsewhere) from None
        except ImportError:
            raise ConfigError("a job's results are in its library; to read it: pip install 'tvm-fleet[tune]'") from None
