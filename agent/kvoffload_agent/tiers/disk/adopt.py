"""Takes in what an earlier life of the agent left behind. Blocking; called in threads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.index import Pack
from kvoffload_agent.tiers.disk.io import Files
from kvoffload_agent.tiers.disk.layout import DamagedError

# About 5 ms of reading, and at most some milliseconds of the event loop to take in.
BATCH_PACKS: Final = 32


class Found(NamedTuple):
    """A file that looks like a pack. ``bytes`` by st_blocks."""

    folder: str
    name: str
    bytes: int


@dataclass(slots=True, kw_only=True)
class Survey:
    """``packs``: newest first. ``folders``: bytes of the directories themselves."""

    packs: list[Found] = field(default_factory=list)
    folders: dict[str, int] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class Batch:
    """``packs``: newest first. ``rejected``: files by reason; they are removed."""

    packs: list[Pack] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)


def survey(files: Files) -> Survey:
    """Return all packs, and what else lay there; that is removed.

    Order is by name, which begins with the time of writing: access times say nothing on many
    mounts.
    """
    found = Survey()
    for folder in files.folders():
        try:
            listed, own = files.names(folder)
        except DamagedError as error:
            found.rejected[error.reason] += 1
            continue
        except OSError:
            found.rejected["unreadable"] += 1
            continue
        packs = [Found(folder, name, size) for name, size in listed if layout.is_pack(name)]
        for name, _ in listed:
            if not layout.is_pack(name):
                _reject(files, folder, name, found.rejected, "unfinished")
        found.packs += packs
        if packs or not files.tidy(folder):
            found.folders[folder] = own
    found.packs.sort(key=lambda item: item.name, reverse=True)
    return found


def adopt(files: Files, items: Sequence[Found]) -> Batch:
    """Read the headers of packs. Their chunks are verified when they are loaded."""
    batch = Batch()
    for folder, name, _ in items:
        try:
            header, data_at, size = files.header(folder, name)
            layout.check_owner(header, folder=folder, name=name)
        except DamagedError as error:
            _reject(files, folder, name, batch.rejected, error.reason)
        except FileNotFoundError:
            continue
        except OSError:
            _reject(files, folder, name, batch.rejected, "unreadable")
        else:
            batch.packs.append(
                Pack(
                    name=name,
                    folder=folder,
                    bucket=header.bucket,
                    bytes=size,
                    data_at=data_at,
                    chunk_bytes=header.chunk_bytes,
                    keys=header.keys,
                    sums=header.checksums(),
                )
            )
    return batch


def _reject(files: Files, folder: str, name: str, rejected: Counter[str], reason: str) -> None:
    rejected[reason] += 1
    try:
        files.remove(folder, name)
    except OSError:
        rejected["not removed"] += 1
