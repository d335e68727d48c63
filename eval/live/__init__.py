"""Measuring servers live: what to offer, to whom, in which order, and what came of it."""
