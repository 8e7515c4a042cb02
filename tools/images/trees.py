"""The folders that become layers: Debian's Python, the locked wheels, the project."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.guest.packages import APT, GuestError, candidate, command, versions

from tools.progress import cache_directory, locked

ROOT = Path(__file__).resolve().parents[2]
PINS = Path(__file__).with_name("packages.txt")
PYTHON = "usr/bin/python3.11"
# Where Debian's Python looks for what is not Debian's.
SITE = "usr/local/lib/python3.11/dist-packages"
# Wheels of this Python on this C library; both are what packages.txt installs.
WHEELS = ("--python-version", "3.11.2", "--python-platform", "x86_64-manylinux_2_36")
UID = 65532
DEADLINE_SECONDS = 600.0
# Documentation, and parts of the standard library that nothing here imports.
UNWANTED = (
    "usr/share",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/valgrind",
)


class ImageError(Exception):
    """An image cannot be built on this machine; the message says why."""


def kept(name: str, *inputs: Path, make: Callable[[Path], None]) -> Path:
    """Return a tree that is made once for the same inputs.

    Args:
        name: What is in it.
        inputs: Files that decide what is in it, besides this one.
        make: Makes it.
    """
    digest = hashlib.sha256(name.encode())
    for file in (Path(__file__), PINS, *inputs):
        digest.update(file.read_bytes())
    final = cache_directory() / "images" / f"{name}-{digest.hexdigest()[:16]}"
    final.parent.mkdir(parents=True, exist_ok=True)
    lock = final.parent / "lock"
    with locked(lock, what=f"images: {name}", deadline_seconds=DEADLINE_SECONDS):
        if not final.exists():
            partial = final.with_name(f".{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.rename(final)
    return final


def debian(tree: Path) -> None:
    """Unpack Debian's Python without running anything of it.

    Raises:
        ImageError: apt or its archive did not do its part.
    """
    archives = tree / "archives"
    archives.mkdir(parents=True)
    try:
        command(["apt-get", *APT, "download", *wanted()], cwd=archives, seconds=DEADLINE_SECONDS)
        for archive in sorted(archives.glob("*.deb")):
            command(["dpkg", "-x", str(archive), str(tree)])
    except GuestError as error:
        raise ImageError(str(error)) from error
    shutil.rmtree(archives)
    for name in UNWANTED:
        shutil.rmtree(tree / name, ignore_errors=True)
    for name in ("tmp", "etc", "proc", "sys", "dev", "run", "var/lib"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "etc/passwd").write_text(
        f"root:x:0:0:root:/:/sbin/nologin\nkvoffload:x:{UID}:{UID}:kvoffload:/:/sbin/nologin\n"
    )
    (tree / "etc/group").write_text(f"root:x:0:\nkvoffload:x:{UID}:\n")
    (tree / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    compile_all(tree, python_of=tree, folder="usr/lib/python3.11")


def wanted() -> list[str]:
    """Return the pinned packages, each at its pinned version if the archive still has it."""
    chosen = []
    for line in PINS.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, _, pinned = line.partition("=")
        found = pinned if pinned in versions(name) else candidate(name)
        if not found:
            raise ImageError(f"apt knows no {name}: run apt-get update, on Debian 12")
        if found != pinned:
            print(f"{name}: {found} instead of the pinned {pinned}", flush=True)
        chosen.append(f"{name}={found}")
    return chosen


def wheels(
    tree: Path,
    *,
    base: Path,
    lock: Path,
    without: Sequence[str],
    uv: Path,
    told: Mapping[str, str],
) -> None:
    """Install the wheels that a lock file names, each checked against its hash.

    Args:
        tree: Where to.
        base: The tree with Python.
        lock: The lock file.
        without: Names in it that this image's programs do not import.
        uv: Installs.
        told: Variables for it.

    Raises:
        ImageError: the package index did not do its part.
    """
    site = tree / SITE
    site.mkdir(parents=True)
    needed = tree / "needed.txt"
    needed.write_text(less(lock.read_text(), without))
    run(
        [
            *(str(uv), "pip", "install", "--quiet", "--require-hashes", "--no-deps"),
            *("--only-binary", ":all:", "--link-mode", "copy", *WHEELS),
            *("--target", str(site), "-r", str(needed)),
        ],
        extra=told,
    )
    needed.unlink()
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for pattern in ("*.dist-info/RECORD", "*.dist-info/REQUESTED", "*.dist-info/direct_url.json"):
        for record in site.glob(pattern):  # they name places of this machine
            record.unlink()
    for tests in [path for path in site.rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests)
    compile_all(tree, python_of=base, folder=SITE)


def less(lock: str, without: Sequence[str]) -> str:
    """Return a lock file's text less some packages; what belongs to one is indented."""
    kept_lines = []
    skipping = False
    for line in lock.splitlines(keepends=True):
        if line[:1].isalnum():
            skipping = line.partition("==")[0] in without
        if not skipping:
            kept_lines.append(line)
    return "".join(kept_lines)


def project(
    tree: Path, *, base: Path, scripts: Mapping[str, str], uv: Path, told: Mapping[str, str]
) -> None:
    """Unpack this project's own wheel, and write its programs.

    Args:
        tree: Where to.
        base: The tree with Python.
        scripts: Name of a program and its ``module:function``.
        uv: Builds the wheel.
        told: Variables for it.
    """
    site = tree / SITE
    site.mkdir(parents=True)
    built = tree.with_name(f"{tree.name}-wheel")
    run(
        [str(uv), "build", "--quiet", "--wheel", "--out-dir", str(built), str(ROOT)],
        extra={**told, "SOURCE_DATE_EPOCH": "315532800"},  # 1980, where zip files begin
    )
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    shutil.rmtree(built)
    for record in site.glob("*.dist-info/RECORD"):
        record.unlink()
    programs = tree / "usr/bin"
    programs.mkdir(parents=True)
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        program = programs / name
        program.write_text(f"#!/{PYTHON} -sP\nfrom {module} import {function}\n\n{function}()\n")
        program.chmod(0o755)
    compile_all(tree, python_of=base, folder=SITE)


def compile_all(tree: Path, *, python_of: Path, folder: str) -> None:
    """Compile a tree's modules with the image's own Python, as its root file system is read-only.

    The compiled files hold a hash that is not checked, rather than a time that differs.
    """
    libraries = (python_of / "lib/x86_64-linux-gnu", python_of / "usr/lib/x86_64-linux-gnu")
    run(
        [
            str(python_of / "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
            *("--library-path", ":".join(map(str, libraries)), str(python_of / PYTHON)),
            *("-BISsE", "-X", "utf8", "-m", "compileall", "-q", "-f", "-j", "2"),
            *("--invalidation-mode", "unchecked-hash"),
            *("-s", str(tree), "-p", "/", str(tree / folder)),
        ],
        extra={"PYTHONHASHSEED": "0"},
    )


def run(words: Sequence[str], *, extra: Mapping[str, str]) -> None:
    """Run a step whose output matters only if it fails.

    Raises:
        ImageError: it failed or ran past its deadline.
    """
    environment = {**os.environ, **extra}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageError(f"`{' '.join(words[:4])}`: {error}") from error
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ImageError(f"`{' '.join(words[:4])}` ended with {done.returncode}:\n{last}")
