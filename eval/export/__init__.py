"""The same load for other benchmarks."""
