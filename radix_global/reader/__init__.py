"""The reader: pages from all tiers at once, straight into slots of the arena."""
