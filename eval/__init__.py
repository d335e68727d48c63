"""Measuring: load, figures and benchmarks."""
