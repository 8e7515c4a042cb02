"""Removes a folder and the cgroup of its name when the process that made it ends, however."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

# The programs that write into the folder are killed by the kernel at the same time: a few tries
# outlast their last writes.
SCRIPT = """cat
for i in 1 2 3 4 5; do
  find /sys/fs/cgroup/"$2" /sys/fs/cgroup/*/"$2" -depth -type d -exec rmdir {} + 2>/dev/null
  rm -rf -- "$1" && ! ls -d /sys/fs/cgroup/"$2" /sys/fs/cgroup/*/"$2" && exit 0
  sleep 0.2
done
exit 1"""
DEADLINE_SECONDS = 30.0


class Reaper:
    """A shell that waits for the end of a pipe whose other end this process holds."""

    def __init__(self, directory: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, "sh", str(directory), directory.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal must not end it
        )

    def remove(self) -> None:
        """Remove the folder now.

        Raises:
            TimeoutError: it took too long.
        """
        if self._shell.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._shell.stdin.close()
        try:
            self._shell.wait(timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._shell.kill()
            self._shell.wait()
            raise TimeoutError("the control plane's folder could not be removed") from error
