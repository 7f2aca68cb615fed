"""Grants devices: who is there, who holds what, who waits.

A pure core (`state`, `queue`) with gRPC, a journal and zeroconf at its edges.
"""
