"""Grants devices: knows who is there, who holds what, and who waits.

A pure core (`state`) with gRPC, a journal and zeroconf at its edges.
"""
