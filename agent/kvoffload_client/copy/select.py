"""The choice between the compiled copy and the one without a compiler."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_client.copy import fallback, kernel

COPY_ENV: Final = "KVOFFLOAD_COPY"

Addresses = NDArray[np.uint64]

# (source addresses, destination addresses, bytes of each): arrays of one length, C-contiguous.
# Ranges must be valid memory and must not overlap; nothing is checked here.
BlockCopy = Callable[[Addresses, Addresses, Addresses], None]

_log = logging.getLogger(__name__)


def choose_copy(choice: str | None = None) -> tuple[str, BlockCopy]:
    """Return (name, function) of the copy to use; both names of ``KVOFFLOAD_COPY`` are valid.

    An unknown choice, or a kernel that cannot be compiled here, falls back with one warning: a
    slower copy is better than an engine that does not start.
    """
    wanted = choice if choice is not None else os.environ.get(COPY_ENV, "")
    if wanted not in ("", "kernel", "numpy"):
        _log.warning("%s=%r is neither kernel nor numpy; choosing by itself", COPY_ENV, wanted)
        wanted = ""
    if wanted != "numpy":
        try:
            return "kernel", kernel.compiled_copy()
        except kernel.KernelUnavailableError as error:
            if wanted == "kernel":
                _log.warning("the copy kernel cannot be used, copying with numpy: %s", error)
    return "numpy", fallback.copy_blocks
