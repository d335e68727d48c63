"""Decisions about moving work between instances."""
