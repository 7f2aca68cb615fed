"""Fuzzing: arbitrary bytes on a port or in a file cause only documented errors, quickly, and with little memory.

A target is a function that takes bytes and raises nothing for any of them; see `target.Target`. They are in `targets`,
one file per kind of input, and listed in `registry`. `corpus/NAME` has inputs that were once harmful: the tests begin
with them.

    python -m tests.fuzz selector --inputs 1000000     # guided by coverage where atheris is installed
    make fuzz                                          # all of them, one after the other
"""
