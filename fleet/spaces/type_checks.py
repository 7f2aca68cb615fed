"""Makes TVM's type checks of schedule calls cheap.

Each call of a schedule splits the type hints of its arguments into parts again, which was a third of the time of static
schedules. The parts never change, so they are cached.
"""

from __future__ import annotations

import functools


@functools.cache
def keep_parts_of_hints() -> None:
    """Cache the parts of type hints in this process. Repeated calls do nothing."""
    from tvm.s_tir.schedule import _type_checker

    _type_checker._dispatcher = functools.cache(_type_checker._dispatcher)  # noqa: SLF001 - TVM has no hook
