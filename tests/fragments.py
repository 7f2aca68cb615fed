"""Small workloads as entries of a file."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.fragments.fragment import Call, Fragment, Tensor
from fleet.fragments.workload_file import Entry


def product_entry(rows: int, inner: int, columns: int, *, models: Mapping[str, int] | None = None) -> Entry:
    """Return a product of matrices as an entry, with the calls by models."""
    return entry_of(
        Fragment(
            inputs=(Tensor(shape=(rows, inner), dtype="float32"),),
            weights=(Tensor(shape=(inner, columns), dtype="float32"),),
            calls=(Call(operator="matmul", operands=("i0", "w0"), attributes={"out_dtype": None}),),
        ),
        models=models,
    )


def entry_of(fragment: Fragment, *, models: Mapping[str, int] | None = None) -> Entry:
    """Return an entry with a hash of no program: readers compute it anew."""
    name = fragment.calls[-1].operator
    return Entry(operator=name, name=name, shash="1", operations=1.0, models=models or {}, fragment=fragment)
