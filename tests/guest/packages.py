"""Gets an emulator, a kernel and busybox from Debian's archive into the cache, installing nothing.

``apt-get download`` verifies each package against the archive's signature; ``dpkg -x`` unpacks it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.progress import cache_directory, locked, step

PINS = Path(__file__).with_name("packages.txt")
KERNEL_META = "linux-image-cloud-amd64"
EMULATOR = "qemu-system-x86"
NEEDED = ("apt-get", "apt-cache", "dpkg", "mke2fs")
# 45 MB; a minute with a slow mirror, so ten are an archive that does not answer.
DOWNLOAD_DEADLINE_SECONDS = 600
# Asking apt what it knows reads local files.
ASK_DEADLINE_SECONDS = 60
# Its path is part of no package's content: apt's own sandbox user cannot enter the cache folder.
APT = ("-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=true")


class GuestError(Exception):
    """The guest cannot be made or run on this machine; the message says why and what to do."""


def cannot_run() -> str | None:
    """Return why this machine cannot run the guest, or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the guest is x86-64 Linux, this is {platform.system()} {platform.machine()}"
    if (home() / "complete").exists():
        return None
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} to get QEMU and a kernel: run it on Debian"
    unknown = [name for name in (EMULATOR, KERNEL_META) if not candidate(name)]
    if unknown:
        return f"apt knows no {', '.join(unknown)}: run apt-get update, on Debian"
    return None


def home() -> Path:
    """Return the folder of the unpacked packages; named after what pins them."""
    return cache_directory() / "guest" / hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]


def prepare() -> Path:
    """Return the folder with the unpacked packages, made on first use.

    Raises:
        GuestError: apt, the archive or the disk did not do its part.
    """
    final = home()
    final.parent.mkdir(parents=True, exist_ok=True)
    lock = final.parent / "lock"
    try:
        with locked(lock, what="the guest", deadline_seconds=DOWNLOAD_DEADLINE_SECONDS):
            if not (final / "complete").exists():
                with step("QEMU and a kernel from Debian's archive", detail=": 45 MB"):
                    unpack(final)
    except (TimeoutError, OSError) as error:
        raise GuestError(f"the guest's packages: {error}") from error
    return final


def unpack(final: Path) -> None:
    """Download and unpack beside the final place, and rename when all is whole."""
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    archives = partial / "archives"
    archives.mkdir(parents=True)
    packages = wanted()
    command(
        ["apt-get", *APT, "download", *packages], cwd=archives, seconds=DOWNLOAD_DEADLINE_SECONDS
    )
    records = []
    for archive in sorted(archives.glob("*.deb")):
        command(["dpkg", "-x", str(archive), str(partial)], cwd=partial)
        records.append(f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n")
    shutil.rmtree(archives)
    (partial / "complete").write_text("".join(records))
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)


def wanted() -> list[str]:
    """Return what to download: the pinned packages, and the libraries that this machine lacks."""
    chosen = {}
    for line in PINS.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, _, pinned = line.partition("=")
        if name.startswith("linux-image-") and not candidate(name):
            name, pinned = newest_kernel(), ""
        found = pinned if pinned in versions(name) else candidate(name)
        if found != pinned:
            print(f"{name}: {found} instead of the pinned {line}", flush=True)
        chosen[name] = found
    simulated = command(
        ["apt-get", *APT, "install", "--simulate", "--no-install-recommends", EMULATOR]
    )
    for name, found in re.findall(r"^Inst (\S+) (?:\[[^]]*\] )?\((\S+)", simulated, re.MULTILINE):
        chosen.setdefault(name, found)
    return [f"{name}={found}" for name, found in chosen.items()]


def newest_kernel() -> str:
    """Return the kernel package that Debian's meta package stands for now."""
    depends = command(["apt-cache", "depends", KERNEL_META])
    found = re.search(r"Depends: (linux-image-\S+)", depends)
    if found is None:
        raise GuestError(f"{KERNEL_META} depends on no kernel: run apt-get update")
    return found.group(1)


def candidate(name: str) -> str:
    """Return the version that apt would install, "" if it knows none."""
    try:
        found = re.search(r"Candidate: (\S+)", command(["apt-cache", "policy", name]))
    except GuestError:
        return ""
    return found.group(1) if found and found.group(1) != "(none)" else ""


def versions(name: str) -> set[str]:
    """Return the versions that the archive offers."""
    listed = command(["apt-cache", "madison", name])
    return {line.split("|")[1].strip() for line in listed.splitlines() if line.count("|") == 2}


def command(
    words: Sequence[str], *, cwd: Path | None = None, seconds: float = ASK_DEADLINE_SECONDS
) -> str:
    """Run a program and return its output.

    Raises:
        GuestError: it failed or ran past its deadline; holds its last lines.
    """
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GuestError(f"`{' '.join(words[:3])}`: {error}") from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise GuestError(f"`{' '.join(words[:3])}` ended with {done.returncode}:\n{last}")
    return done.stdout
