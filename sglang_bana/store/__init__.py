"""The store daemon as a process: its tiers from the configuration, its sizes, its commands."""
