"""What the client says of itself in ``Hello``."""

from importlib import metadata
from typing import Final


def _version() -> str:
    try:
        return metadata.version("kvoffload")
    except metadata.PackageNotFoundError:  # copied into an engine's image without its metadata
        return "unknown"


CLIENT_VERSION: Final = _version()
