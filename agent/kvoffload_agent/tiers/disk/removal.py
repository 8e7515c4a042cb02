"""Files that leave: their bytes count until they are gone; what is not removed is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import structlog

from kvoffload_agent.tiers.disk.index import DiskIndex, Pack
from kvoffload_agent.tiers.disk.io import Files
from kvoffload_agent.tiers.disk.workers import Workers

# A file system that was remounted read-only is mended by people, not within seconds.
RETRY_SECONDS: Final = 30.0

_log = structlog.get_logger(__name__)


class Removals:
    """Belongs to the event loop's thread, but for ``unlink``; ``clock`` is monotonic seconds."""

    def __init__(
        self, *, files: Files, index: DiskIndex, keeper: Workers, clock: Callable[[], float]
    ) -> None:
        self._files = files
        self._index = index
        self._keeper = keeper
        self._clock = clock
        self._failed: list[Pack] = []
        self._retry_at = 0.0

    def begin(self, packs: Sequence[Pack]) -> None:
        """Serve packs no more, and remove their files."""
        leaving = [pack for pack in packs if self._index.begin_removal(pack)]
        if leaving:
            self._submit(leaving)

    def unlink(self, packs: Sequence[Pack]) -> list[Pack]:
        """Remove files; called in a thread. Returns those that are gone."""
        gone = []
        for pack in packs:
            try:
                self._files.remove(pack.folder, pack.name)
            except OSError as error:
                _log.warning("file not removed", pack=pack.name, error=str(error))
            else:
                gone.append(pack)
        return gone

    def settle(self, packs: Sequence[Pack], gone: Sequence[Pack], *, now: float) -> None:
        """Take in what ``unlink`` of ``packs`` returned."""
        for pack in gone:
            self._index.removed(pack.name)
        rest = set(packs) - set(gone)
        if rest:
            self._failed.extend(rest)
            self._retry_at = now + RETRY_SECONDS
        for folder in {pack.folder for pack in gone}:
            if not self._index.holds(folder):
                self._tidy(folder)

    def retry(self) -> None:
        """Try again what failed, if it is time."""
        if self._failed and self._clock() >= self._retry_at:
            packs, self._failed = self._failed, []
            self._submit(packs)

    def _submit(self, packs: Sequence[Pack]) -> None:
        def done(gone: Sequence[Pack] | None, error: BaseException | None) -> None:
            if error is not None:
                _log.error("removal failed", error=repr(error))
            self.settle(packs, gone or (), now=self._clock())

        self._keeper.submit(partial(self.unlink, packs), done)

    def _tidy(self, folder: str) -> None:
        def done(removed: Any, error: BaseException | None) -> None:
            # A pack that was written meanwhile made the directory anew.
            if error is None and removed and not self._index.holds(folder):
                self._index.measure(folder, 0)

        self._keeper.submit(partial(self._files.tidy, folder), done)
