"""runc and the CNI plugins, from Debian's archive into the cache; see tests/guest/packages.py."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from tests.guest.packages import APT, GuestError, candidate, command, versions
from tests.harness.processes import NotReadyError
from tools.progress import cache_directory, locked

PINS = Path(__file__).with_name("node-packages.txt")
DOWNLOAD_SECONDS = 300.0


def programs_of_debian() -> dict[str, Path]:
    """Return the path of runc and of one CNI plugin, which the others are beside.

    Raises:
        NotReadyError: apt or its archive did not do its part.
    """
    home = (
        cache_directory()
        / "cluster"
        / f"debian-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]}"
    )
    try:
        with locked(
            home.parent / "debian.lock", what="runc", deadline_seconds=2 * DOWNLOAD_SECONDS
        ):
            if not home.exists():
                download(home)
    except (GuestError, TimeoutError, OSError) as error:
        raise NotReadyError(f"the node's Debian packages: {error}") from error
    return {"runc": home / "usr/sbin/runc", "bridge": home / "usr/lib/cni/bridge"}


def download(home: Path) -> None:
    """Download and unpack beside the final place, and rename when all is whole."""
    partial = home.with_name(f".{home.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    wanted = []
    for line in PINS.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, _, pinned = line.partition("=")
        found = pinned if pinned in versions(name) else candidate(name)
        if found != pinned:
            print(f"{name}: {found} instead of the pinned {pinned}", flush=True)
        wanted.append(f"{name}={found}")
    command(["apt-get", *APT, "download", *wanted], cwd=partial, seconds=DOWNLOAD_SECONDS)
    for archive in partial.glob("*.deb"):
        command(["dpkg", "-x", str(archive), str(partial)])
        archive.unlink()
    partial.rename(home)
