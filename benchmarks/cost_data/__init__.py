"""Measured candidates of many workloads: what the cost model learns from and is judged by."""
