"""Boots the guest in QEMU and hands on its results as they come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.guest.packages import GuestError
from tests.harness.processes import Process

MEMORY_MIB = 2048
# Emulated: a quarter of an hour on an idle machine. Below the deadline of a stage of the tests.
DEADLINE_SECONDS = 2400.0
APPEND = "console=ttyS0 panic=1 quiet psi=1 root=/dev/nvme0n1 rootwait rw init=/init"
Result = dict[str, Any]


def command(packages: Path, disk: Path, *, console: Path, results: Path) -> list[str]:
    """Return QEMU's command line: no network, no KVM (it may hang), nothing written but ``disk``.

    The kernel has NVMe and ext4 built in, so no module and no initramfs is needed.
    """
    kernel = next(iter(sorted((packages / "boot").glob("vmlinuz-*"))))
    share = packages / "usr" / "share"
    return [
        str(packages / "usr" / "bin" / "qemu-system-x86_64"),
        "-L", str(share / "qemu"), "-L", str(share / "seabios"),
        "-accel", "tcg", "-cpu", "max", "-m", str(MEMORY_MIB),
        "-display", "none", "-no-reboot", "-nic", "none", "-monitor", "none",
        "-serial", f"file:{console}", "-serial", f"file:{results}",
        "-kernel", str(kernel), "-append", APPEND,
        "-drive", f"file={disk},if=none,id=disk,format=raw,cache=unsafe",
        "-device", "nvme,drive=disk,serial=kvoffload",
    ]  # fmt: skip


def run(packages: Path, disk: Path, folder: Path, *, tell: Callable[[Result], None]) -> int:
    """Boot, tell each result once, and return pytest's exit code in the guest.

    Raises:
        GuestError: it ended or its time was over before the suite had a result.
    """
    console, results = folder / "console.log", folder / "results"
    results.touch()
    libraries = ":".join(str(packages / at / "x86_64-linux-gnu") for at in ("usr/lib", "lib"))
    environment = {"LD_LIBRARY_PATH": libraries, "TMPDIR": str(folder)}
    words = command(packages, disk, console=console, results=results)
    until = time.monotonic() + DEADLINE_SECONDS
    read = 0
    with Process(words, name="qemu", log=folder / "qemu.log", environment=environment) as process:
        while True:
            running = process.running
            lines, read = fresh(results, read)
            for line in lines:
                if "exit_code" in line:
                    return int(line["exit_code"])
                tell(line)
            if not running:
                raise GuestError(f"the guest ended without a result:\n{ends(folder)}")
            if time.monotonic() > until:
                raise GuestError(
                    f"no result within {DEADLINE_SECONDS:.0f} s; the guest said:\n{ends(folder)}"
                )
            time.sleep(0.5)


def fresh(results: Path, read: int) -> tuple[list[Result], int]:
    """Return the whole lines beyond ``read`` bytes, and how far they go."""
    data = results.read_bytes()[read:]
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line.strip()], read + len(whole)


def ends(folder: Path) -> str:
    """Return the last lines of console and emulator."""
    texts = []
    for name in ("console.log", "qemu.log"):
        path = folder / name
        if path.exists() and path.stat().st_size:
            texts += path.read_text(errors="replace").splitlines()[-30:]
    return "\n".join(texts)
