"""Which chunks of a request are offered for storing (``scheduler.md`` section 5)."""
