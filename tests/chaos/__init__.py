"""Runs a fleet under a seeded schedule of faults, and checks from its logs that all guarantees held: `make chaos`."""
