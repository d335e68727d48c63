"""The floor: records, registry, errors and the policies that need nothing else."""
