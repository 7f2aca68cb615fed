"""Tuning jobs as values and as entries in the library: options, specification, claim, progress and report."""
