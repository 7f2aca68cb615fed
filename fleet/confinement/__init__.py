"""Confinement of a process with Landlock, seccomp and capabilities. Needs no privileges."""
