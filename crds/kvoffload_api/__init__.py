"""The API of kvoffload: models, resolution and wire messages, shared by every component."""
