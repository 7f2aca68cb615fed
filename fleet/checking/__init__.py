"""Checks outputs: inputs that tell programs apart, tolerances, and the error of a reference."""
