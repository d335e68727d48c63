"""A store beside the simulated instance: what it holds, reads and writes, and who waits for it."""
