"""The shared, tiered KV store."""
