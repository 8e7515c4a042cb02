"""Which chunk leaves first."""
