"""What an engine must have installed to import the client."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

for name in ("torch", "llvmlite", "pydantic", "structlog", "yaml", "aiohttp", "kubernetes"):
    sys.modules[name] = None  # importing it raises ImportError
import kvoffload_client
from kvoffload_client.copy import choose_copy

assert choose_copy()[0] == "numpy"
"""


def test_msgspec_and_numpy_are_enough() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
