"""``python -m tests.vllm``: the connector inside the engine's environment, then a real engine.

Ends with the line ``N passed, N failed`` over both, and exit code 1 if anything failed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

from tests.vllm.engine import engine_environment
from tests.vllm.install import ROOT, environment_python

# Engines start in 40 to 80 s and the tests took two minutes on two busy cores.
DEADLINE_SECONDS = 20 * 60


def main() -> int:
    """Run both parts; the second one even if the first failed."""
    if not environment_python().exists():
        print("no vLLM environment: `python3 tools/setup.py vllm` makes it", file=sys.stderr)
        return 1
    in_engine = ["-c", "tests/vllm/pytest.ini", "--rootdir", str(ROOT), "tests/vllm/in_engine"]
    runs = [
        run([str(environment_python()), "-m", "pytest", *in_engine], extra=engine_environment()),
        run([sys.executable, "-m", "pytest", "-q", "tests/vllm/test_slice.py"], extra={}),
    ]
    passed, failed = (sum(column) for column in zip(*runs, strict=True))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def run(command: list[str], *, extra: dict[str, str]) -> tuple[int, int]:
    """Run pytest, its output passed through; return (passed, failed), failed > 0 if it broke."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **extra},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watchdog = signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
    signal.alarm(DEADLINE_SECONDS)
    last = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if re.search(r"\d+ (passed|failed|error)", line) else last
        code = process.wait()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, watchdog)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", last)
    }
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return counts.get("passed", 0), failed or (1 if code else 0)


if __name__ == "__main__":
    sys.exit(main())
