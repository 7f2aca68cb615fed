"""Fuzzing: whatever bytes come to a port or stand in a file, only the errors that are documented come out, soon, and
without much memory.

A target is a function that takes bytes and raises nothing for any of them; see `target.Target`. They are in `targets`,
one file per kind of thing that is read, and listed in `registry`. `corpus/NAME` has the inputs that once did harm: the
tests begin with them.

    python -m tests.fuzz selector --inputs 1000000     # guided by coverage where atheris is installed
    make fuzz                                          # all of them, one after the other
"""
