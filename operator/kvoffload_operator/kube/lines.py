"""Lines of any length out of a byte stream.

aiohttp's ``readline`` fails above 128 KiB, and one object with its managed fields may be longer.
"""

from collections.abc import Iterator


class LineSplitter:
    """Collects bytes and hands out complete lines; holds no more than one unfinished line."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield every line that ``data`` completes, without its line end and without empty lines.

        Args:
            data: The next bytes of the stream, in any size.
        """
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._parts.append(data[start:end])
            line = b"".join(self._parts)
            self._parts.clear()
            start = end + 1
            if line:
                yield line
        if start < len(data):
            self._parts.append(data[start:])
