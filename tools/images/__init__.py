"""Container images without a registry and without a daemon: see docs/adr/0013 for why."""
