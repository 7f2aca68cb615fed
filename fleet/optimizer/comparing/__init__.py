"""Compares programs that run the same model: statistics, the order of turns, and the turns themselves."""
