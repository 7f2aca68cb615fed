"""Fragments: the imported operators behind a workload, as plain data."""
