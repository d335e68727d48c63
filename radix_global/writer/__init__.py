"""The writer: new pages onto the tiers, after the reads."""
