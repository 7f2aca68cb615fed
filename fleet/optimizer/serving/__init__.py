"""The optimizer as a process: runs submitted jobs, and serves the cost model."""
