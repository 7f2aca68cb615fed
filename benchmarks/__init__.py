"""Our performance claims, measured beside the peer in the same run. See docs/reference/benchmarks.md."""
