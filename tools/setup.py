"""Makes a checkout ready: the locked environment, the test cluster, the real engine.

Examples:
  python3 tools/setup.py env       create or update .venv from requirements/dev.txt
  python3 tools/setup.py cluster   the same, then build the control plane's programs
  python3 tools/setup.py vllm      the same, then install the real engine

Uses the standard library alone. Nothing is installed outside of .venv and the cache folder
($KVOFFLOAD_CACHE, by default ~/.cache/kvoffload). Package indexes and certificates that pip is
told, in variables (PIP_INDEX_URL, PIP_CERT, ...) or pip.conf, are used for every step.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - before anything that an older Python cannot read
    sys.exit(
        "kvoffload needs Python 3.11 or later; this is Python %d.%d (%s). "  # noqa: UP031
        "Name another one with `make PYTHON3=python3.12 ...`"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this file is run by its path, and tools/ is a package of the root

from tools.pip_settings import for_uv, from_configuration  # noqa: E402
from tools.progress import cache_directory, locked, step  # noqa: E402

ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "kvoffload-stamp"
LOCK_FILE = ROOT / "requirements" / "dev.txt"
# The installer itself; re-made with `uv pip compile --generate-hashes --no-annotate`.
UV_LOCK_FILE = ROOT / "tools" / "uv.txt"
# With a cold cache and a slow index 3 min were seen; the control plane took 15 and vLLM 5 min.
STEP_DEADLINE_SECONDS = 30 * 60
LONG_STEP_DEADLINE_SECONDS = 90 * 60
STOP_PATIENCE_SECONDS = 15.0


class SetupError(Exception):
    """The checkout cannot be made ready on this machine; the message says what to do."""


def main() -> int:
    """Run one target; exit code 1 with the reason if it cannot be done, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=("env", "cluster", "vllm"))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        ensure_environment()
        if arguments.target == "cluster":
            run_target([str(PYTHON), "-m", "tests.cluster", "build"])
        elif arguments.target == "vllm":
            run_target([str(PYTHON), str(ROOT / "tests" / "vllm" / "install.py")])
    except (SetupError, TimeoutError) as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up: stopped; run it again to go on", file=sys.stderr)
        return 130
    return 0


def interrupt(*_: object) -> None:
    """End on SIGTERM as on Ctrl-C, so that what was started ends too."""
    raise KeyboardInterrupt


def ensure_environment() -> None:
    """Create or update .venv, unless it is what the lock says already.

    Raises:
        SetupError: Python cannot make environments, or the package index cannot be reached.
    """
    if is_current():
        return
    # Two `make` at once in one checkout must not install into each other's environment.
    place = hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]
    lock = cache_directory() / f"venv-{place}.lock"
    with locked(lock, what=".venv", deadline_seconds=STEP_DEADLINE_SECONDS):
        if is_current():
            return
        STAMP.unlink(missing_ok=True)
        uv = find_uv()
        told = uv_variables(uv)
        with step("Python environment (.venv)", detail=f": {locked_packages()} packages"):
            if not runs(PYTHON):
                shutil.rmtree(ENVIRONMENT, ignore_errors=True)
                make_environment(ENVIRONMENT, with_pip=False)
            pip = [str(uv), "pip"]
            at = ["--python", str(PYTHON), "--quiet"]
            run([*pip, "sync", *at, "--require-hashes", str(LOCK_FILE)], extra=told)
            run([*pip, "install", *at, "--no-deps", "-e", str(ROOT)], extra=told)
        STAMP.write_text(digest())


def is_current() -> bool:
    """Return whether .venv was made from what the checkout says now."""
    try:
        return STAMP.read_text() == digest() and PYTHON.exists()
    except OSError:
        return False


def digest() -> str:
    """Return the hash of what .venv is made from."""
    content = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for file in (LOCK_FILE, ROOT / "pyproject.toml"):
        content.update(file.read_bytes())
    return content.hexdigest()


def find_uv() -> Path:
    """Return the pinned uv, installed into the cache on first use.

    Raises:
        SetupError: it cannot be installed.
    """
    name = f"uv-{hashlib.sha256(UV_LOCK_FILE.read_bytes()).hexdigest()[:16]}"
    home = cache_directory() / name
    uv = home / "bin" / "uv"
    lock = cache_directory() / "uv.lock"
    with locked(lock, what="the installer", deadline_seconds=STEP_DEADLINE_SECONDS):
        if runs(uv):
            return uv
        shutil.rmtree(home, ignore_errors=True)
        with step("installer (uv)"):
            make_environment(home, with_pip=True)
            pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
            install = ["install", "--quiet", "--require-hashes", "-r", str(UV_LOCK_FILE)]
            run([*pip, *install])
    return uv


def make_environment(home: Path, *, with_pip: bool) -> None:
    """Create a virtual environment.

    Raises:
        SetupError: this Python cannot; Debian's needs a package for it.
    """
    options = [] if with_pip else ["--without-pip"]
    try:
        run([sys.executable, "-m", "venv", *options, str(home)])
    except SetupError as error:
        raise SetupError(
            f"{error}\n{sys.executable} cannot make virtual environments: on Debian and Ubuntu "
            "install python3-venv"
        ) from error


def runs(program: Path) -> bool:
    """Return whether a program is there and starts."""
    try:
        done = subprocess.run(
            [str(program), "--version"], capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def locked_packages() -> int:
    """Return how many packages the lock names."""
    return sum("==" in line and line[0].isalnum() for line in LOCK_FILE.read_text().splitlines())


def run_target(command: list[str]) -> None:
    """Run one of the project's own builders, which tell how far they are.

    Raises:
        SetupError: it failed; it has said why.
    """
    uv = find_uv()
    variables = {"KVOFFLOAD_UV": str(uv), **uv_variables(uv)}
    code, _ = execute(command, deadline_seconds=LONG_STEP_DEADLINE_SECONDS, extra=variables)
    if code:
        raise SetupError(f"`{' '.join(command)}` ended with {code}; its reason is above")


def uv_variables(uv: Path) -> dict[str, str]:
    """Return what to tell uv of pip's settings."""
    return for_uv(from_configuration(uv.with_name("python")))


def run(command: list[str], *, extra: dict[str, str] | None = None) -> None:
    """Run a step whose output matters only if it fails.

    Raises:
        SetupError: it failed; holds its output.
    """
    code, output = execute(
        command, deadline_seconds=STEP_DEADLINE_SECONDS, captured=True, extra=extra
    )
    if code:
        hint = (
            "\nIf the package index cannot be reached: set PIP_INDEX_URL (and PIP_CERT) to one "
            "that can, then run it again"
            if {"pip", "install"} & set(command)
            else ""
        )
        raise SetupError(f"`{' '.join(command)}` ended with {code}:\n{output.strip()}{hint}")


def execute(
    command: list[str],
    *,
    deadline_seconds: float,
    captured: bool = False,
    extra: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Run a command in a process group of its own, which ends with this process.

    Returns:
        Its exit code and, if captured, its output.

    Raises:
        SetupError: it ran past its deadline.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(extra or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.STDOUT if captured else None,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"`{' '.join(command)}` ran past {deadline_seconds:.0f} s") from error
    finally:
        end(process)
    return process.returncode, output or ""


def end(process: subprocess.Popen[str]) -> None:
    """End a step that still runs: politely, so that it ends what it started, then for good."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(timeout=STOP_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(main())
