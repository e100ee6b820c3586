"""Benchmarks: ratios measured side by side in one run. `make bench` writes docs/performance.md."""
