"""The offload scheduler: what to load and what to store, decided without I/O."""
