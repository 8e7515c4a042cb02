"""Runs coroutines on a clock that jumps to the next timer."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import looptime


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end on a loop of its own, which is closed.

    looptime's own plug-in leaves a loop open that pytest then complains of.
    """
    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
