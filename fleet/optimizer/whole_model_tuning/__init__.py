"""Compares the best schedules of each workload in the whole model, and keeps the winners."""
