"""Options of the command line that several commands share, and how their values are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvoffload_api.quantity import QuantityError, parse_quantity


def quantity(text: str | int) -> int:
    """Parse a quantity such as 8Gi.

    Raises:
        typer.BadParameter: it is none.
    """
    if isinstance(text, int):  # typer parses defaults too
        return text
    try:
        return parse_quantity(text)
    except QuantityError as error:
        raise typer.BadParameter(str(error)) from error


def _limit(text: str | int) -> int:
    """Parse a limit: a quantity, or plain bytes as the Downward API writes them."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    return quantity(text)


MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        parser=_limit,
        metavar="BYTES",
        envvar="KVOFFLOAD_MEMORY_LIMIT",
        help="The container's memory limit (Downward API limits.memory), on top of what the "
        "cgroups show.",
    ),
]

LimitFile = Annotated[
    Path | None,
    typer.Option(
        "--memory-limit-file",
        envvar="KVOFFLOAD_MEMORY_LIMIT_FILE",
        help="A file with the container's memory limit in bytes (a Downward API volume with "
        "limits.memory), read again each time: it follows a pod that is resized in place.",
    ),
]
HostCgroups = Annotated[
    Path | None,
    typer.Option(
        "--host-cgroups",
        envvar="KVOFFLOAD_HOST_CGROUPS",
        help="Where the host's /sys/fs/cgroup is mounted read-only, to see the limits of "
        "ancestors that the container's cgroup namespace hides.",
    ),
]
