"""Finds the memory cgroups that limit this process and reads their figures (v1, v2, hybrid).

A process's own group comes from ``/proc/self/cgroup``, where its hierarchy is mounted from
``/proc/self/mountinfo``; both are read each time, since processes are moved and pods are resized
in place. Nothing here raises: what cannot be read becomes a level's ``problem``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvoffload_agent.memory.snapshot import Level

# v1 writes "no limit" as the largest multiple of the page size (``scheduler.md`` section 7).
V1_UNLIMITED = 1 << 62
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted cgroup hierarchy: ``root`` is the group that ``point`` shows."""

    version: int
    root: str
    point: str


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Return the cgroup mounts of a mountinfo file; lines that make no sense are skipped."""
    mounts = []
    for line in mountinfo.splitlines():
        # proc(5): root and mount point are fields 4 and 5, what follows the dash is the super block
        left, _, right = line.partition(" - ")
        match left.split(" "), right.split(" "):
            case [_, _, _, mount_root, point, *_], ["cgroup2", *_]:
                version = 2
            case [_, _, _, mount_root, point, *_], ["cgroup", _, options] if (
                "memory" in options.split(",")
            ):
                version = 1
            case _:
                continue
        mounts.append(Mount(version=version, root=_unescape(mount_root), point=_unescape(point)))
    return mounts


def parse_membership(cgroup: str) -> dict[int, str]:
    """Return version → path of the memory group of a ``/proc/PID/cgroup`` file."""
    membership = {}
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator or not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            membership[2] = path
        elif "memory" in controllers.split(","):
            membership[1] = path
    return membership


def read_levels(root: Path) -> tuple[tuple[Level, ...], tuple[str, ...]]:
    """Return the levels from the own group upwards, and what could not be found.

    ``root`` is where the file system begins (tests: a folder of recorded files).
    v1 wins where both hierarchies exist and the memory controller is v1's: a controller is in one
    hierarchy at a time.
    """
    try:
        groups = _groups(root)
    except (OSError, UnicodeDecodeError) as error:
        return (), (f"the cgroup of this process is unknown: {error}",)
    for version, point, own in groups:
        levels = chain(point, own=own, version=version)
        if levels:
            return levels, ()
    return (), ("no memory cgroup is visible",)


def own_groups(root: Path) -> tuple[int, tuple[Path, ...]]:
    """Return the version and the folders of the visible groups, the own one first.

    ``(0, ())`` if there is none; never raises.
    """
    try:
        groups = _groups(root)
    except (OSError, UnicodeDecodeError):
        return 0, ()
    for version, point, own in groups:
        file = "memory.limit_in_bytes" if version == 1 else "memory.max"
        folders = [own, *own.parents]
        visible = folders[: folders.index(point) + 1]
        if found := tuple(group for group in visible if (group / file).exists()):
            return version, found
    return 0, ()


def _groups(root: Path) -> list[tuple[int, Path, Path]]:
    """Return (version, mount point, own group) of each hierarchy this process is in.

    Raises:
        OSError, UnicodeDecodeError: what the kernel says about this process is unreadable.
    """
    membership = parse_membership((root / "proc/self/cgroup").read_text())
    mounts = parse_mounts((root / "proc/self/mountinfo").read_text())
    groups = []
    for version in (1, 2):
        path = membership.get(version)
        mount = next((mount for mount in mounts if mount.version == version), None)
        if path is None or mount is None:
            continue
        point = root / mount.point.lstrip("/")
        relative = _below(path, mount.root)
        # A path outside the mount's root (a container with the host's hierarchy hidden) shows the
        # process's group at the mount point itself.
        own = point if relative is None else point / relative
        groups.append((version, point, own if own.is_dir() else point))
    return groups


def chain(point: Path, *, own: Path, version: int) -> tuple[Level, ...]:
    """Return the levels from the group ``own`` up to ``point``, a folder above it; never raises."""
    levels = []
    group = own
    while True:
        shown = "/" + str(group.relative_to(point)) if group != point else "/"
        if (level := _read(group, shown=shown, version=version)) is not None:
            levels.append(level)
        if group == point:
            break
        group = group.parent
    if version == 1 and levels:
        levels.extend(_hidden_v1(own, levels))
    return tuple(levels)


def _below(path: str, mount_root: str) -> str | None:
    if ".." in PurePosixPath(path).parts:
        return None
    try:
        return str(PurePosixPath(path).relative_to(mount_root))
    except ValueError:
        return None


def _read(group: Path, *, shown: str, version: int) -> Level | None:
    return _read_v1(group, shown=shown) if version == 1 else _read_v2(group, shown=shown)


def _read_v2(group: Path, *, shown: str) -> Level | None:
    if not (group / "memory.max").exists():
        # The root of the hierarchy has no limit, nor has a group without the controller.
        return None
    try:
        hard = _number(group / "memory.max", unlimited="max")
        soft = _number(group / "memory.high", unlimited="max", missing_ok=True)
        usage = _number(group / "memory.current") or 0
        inactive = _stat(group / "memory.stat").get("inactive_file", 0)
    except _UnreadableError as error:
        return Level(path=shown, version=2, limit=None, problem=str(error))
    limits = [limit for limit in (hard, soft) if limit is not None]
    limit = min(limits) if limits else None
    return Level(
        path=shown,
        version=2,
        limit=limit,
        usage=usage,
        inactive_file=inactive,
        high=soft is not None and limit == soft and soft != hard,
    )


def _read_v1(group: Path, *, shown: str) -> Level | None:
    if not (group / "memory.limit_in_bytes").exists():
        return None
    try:
        limit = _number(group / "memory.limit_in_bytes") or 0
        usage = _number(group / "memory.usage_in_bytes") or 0
        inactive = _stat(group / "memory.stat").get("total_inactive_file", 0)
    except _UnreadableError as error:
        return Level(path=shown, version=1, limit=None, problem=str(error))
    return Level(
        path=shown,
        version=1,
        limit=None if limit >= V1_UNLIMITED else limit,
        usage=usage,
        inactive_file=inactive,
    )


def _hidden_v1(own: Path, levels: list[Level]) -> list[Level]:
    """Return the limit of an ancestor that a cgroup namespace hides, if v1 tells of one.

    ``hierarchical_memory_limit`` is the smallest limit of all ancestors. The hidden one's usage is
    unknown; it is at least that of the topmost visible group.
    """
    try:
        limit = _stat(own / "memory.stat").get("hierarchical_memory_limit")
    except _UnreadableError:
        return []  # the own level already carries this problem
    visible = [level.limit for level in levels if level.limit is not None]
    if limit is None or limit >= V1_UNLIMITED or (visible and limit >= min(visible)):
        return []
    top = levels[-1]
    return [
        Level(
            path="hidden ancestor (hierarchical_memory_limit)",
            version=1,
            limit=limit,
            usage=top.usage,
            inactive_file=top.inactive_file,
        )
    ]


class _UnreadableError(Exception):
    pass


def _number(path: Path, *, unlimited: str = "", missing_ok: bool = False) -> int | None:
    """Return the number in a file, None for ``unlimited``."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        if missing_ok:
            return None
        raise _UnreadableError(f"{path.name} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _UnreadableError(f"{path.name} is unreadable: {error}") from error
    if unlimited and text == unlimited:
        return None
    if not (text.isascii() and text.isdigit()):
        raise _UnreadableError(f"{path.name} holds {text[:40]!r}, not a number of bytes")
    return int(text)


def _stat(path: Path) -> dict[str, int]:
    """Return a memory.stat file; a missing file credits no cache, a damaged line is skipped."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _UnreadableError(f"{path.name} is unreadable: {error}") from error
    figures = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isascii() and value.isdigit():
            figures[name] = int(value)
    return figures


def _unescape(field: str) -> str:
    """Undo mountinfo's octal escapes of blanks."""
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), field)
