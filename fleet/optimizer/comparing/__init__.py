"""Compares programs for the same model: statistics, the order of turns, and the turns themselves."""
