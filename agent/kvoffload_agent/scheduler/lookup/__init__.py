"""How many tokens can be loaded (``scheduler.md`` section 3)."""
