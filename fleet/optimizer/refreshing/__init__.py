"""Refreshes records: rebuilds the best schedules, carries those with equal code, and measures the others again."""
