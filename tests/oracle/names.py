"""Names of hashes and keys in recorded cases, as bytes and back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_BYTES = 8

Key = tuple[int, bytes]


class Names:
    """``"group:hash"``; a hash is an integer, or ``t1``, ``t2``… where tokens were hashed."""

    def __init__(self) -> None:
        self._of_tokens: dict[bytes, str] = {}
        self._by_name: dict[str, bytes] = {}

    def hash(self, name: int | str) -> bytes:
        """Return the bytes of a hash."""
        if isinstance(name, str) and name.startswith("t"):
            return self._by_name[name]
        return int(name).to_bytes(_BYTES, "big")

    def name(self, value: bytes) -> str:
        """Return the name of a hash."""
        return self._of_tokens.get(value) or str(int.from_bytes(value, "big"))

    def key(self, name: str) -> Key:
        """Return (group, hash) of a key's name."""
        group, value = name.split(":")
        return int(group), self.hash(value)

    def name_of(self, key: Key) -> str:
        """Return a key's name."""
        return f"{key[0]}:{self.name(key[1])}"

    def chain(self, tokens: Sequence[int], size: int) -> list[bytes]:
        """Hash whole runs of ``size`` tokens, each with its predecessor."""
        parent = b""
        found = []
        for at in range(0, len(tokens) - size + 1, size):
            text = repr((parent, tokens[at : at + size])).encode()
            parent = hashlib.sha256(text).digest()[:_BYTES]
            if parent not in self._of_tokens:
                name = f"t{len(self._of_tokens) + 1}"
                self._of_tokens[parent] = name
                self._by_name[name] = parent
            found.append(parent)
        return found
