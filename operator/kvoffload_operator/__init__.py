"""The operator: compiles policies into one configuration per node."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed


def version() -> str:
    """Return the distribution's version; ``0`` if it runs from a folder without being installed."""
    try:
        return _installed("kvoffload")
    except PackageNotFoundError:
        return "0"
