"""The store benchmark: tiers together, beside each alone and beside plain reads."""
