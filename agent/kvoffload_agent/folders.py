"""Folders on the node that the agent needs and kubelet makes as root's."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

# Engines run under any uid and must reach the socket; nobody else may read the configuration.
PUBLIC: Final = 0o755
PRIVATE: Final = 0o700


class FolderError(Exception):
    """A folder cannot be what it must be; for the person who runs the node."""


def give(folder: Path, *, owner: int, mode: int) -> None:
    """Make a folder if there is none, and give it to a uid and its group of the same number.

    A link is refused: whoever can write beside it must not choose what is given away.

    Raises:
        FolderError: it is no folder, or this process may not change it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and _is(found, owner=owner, mode=mode):
            # Root without further capabilities may not even open what is another's alone.
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # The mode first: an owner needs no capability for it.
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, owner, owner)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FolderError(f"{folder} cannot be given to uid {owner}: {error.strerror}") from error


def _is(found: os.stat_result, *, owner: int, mode: int) -> bool:
    actual = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
    return actual == (owner, owner, mode)
