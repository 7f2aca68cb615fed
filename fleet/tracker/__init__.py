"""Grants devices: keeps agents, leases and waiting requests.

A pure core (`state`) with gRPC, a journal and zeroconf at its edges.
"""
