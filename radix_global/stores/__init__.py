"""The storage tiers: one file a kind, behind one protocol."""
