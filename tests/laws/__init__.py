"""The long run of the scheduler's laws, and how many random examples it took."""
