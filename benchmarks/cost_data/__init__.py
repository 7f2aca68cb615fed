"""Measured candidates of many workloads: training and test data of the cost model."""
