"""Benchmarks: one runner a name, all writing the same report."""
