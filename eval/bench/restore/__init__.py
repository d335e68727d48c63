"""Fetch or recompute: what the planner gains over fixed rules, at any bandwidth."""
