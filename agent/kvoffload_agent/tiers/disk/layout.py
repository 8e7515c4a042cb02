"""What is on the disk: names, the header of a pack file, checksums. No I/O.

A pack holds the chunks of one store: a header, padded to ``ALIGN``, then the chunks one after the
other (``docs/adr/0007``). A chunk is the rows of all its ranks, rank 0 first.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from kvoffload_agent.tiers.secondary import Key

MAGIC: Final = b"KVOPACK\0"
VERSION: Final = 1
# O_DIRECT wants offsets and lengths of the logical block size; none in use is above a page.
ALIGN: Final = 4096
# Far above any pack (16 Ki chunks have about 1 MiB): a damaged length must not take memory.
MAX_HEADER_BYTES: Final = 64 << 20
# A pack is evicted as a whole: small against any capacity, large against the cost of one file.
PACK_BYTES: Final = 64 << 20
# 64 MiB of tiny chunks would make a header that takes long to read at adoption.
PACK_CHUNKS: Final = 4096
# A group's number is part of a checksum as four bytes.
MAX_GROUP: Final = (1 << 32) - 1

PACK_SUFFIX: Final = ".pack"
TEMPORARY_SUFFIX: Final = ".tmp"
_PACK_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}\.pack")
_FOLDER_NAME: Final = re.compile(r"[0-9a-f]{40}")

# Magic, version, CRC-32 of the body, length of the body.
_PREFIX: Final = struct.Struct("<8sIIQ")


class DamagedError(Exception):
    """A file is not what its name promises. ``reason`` is one of few, for a metric's label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says whose chunks these are. ``sums``: one little-endian CRC-32 for each key."""

    name: str
    namespace: str
    fingerprint: str
    bucket: str
    ranks: int
    row_bytes: int
    keys: list[tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_GROUP)], bytes]]
    sums: bytes

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk, all ranks."""
        return self.ranks * self.row_bytes

    def checksums(self) -> list[int]:
        """Return the checksum of each chunk."""
        return [number for (number,) in struct.iter_unpack("<I", self.sums)]


def folder_name(namespace: str, fingerprint: str) -> str:
    """Return the name of a partition's directory: what clients choose never becomes a path."""
    return hashlib.sha256(f"{namespace}\0{fingerprint}".encode()).hexdigest()[:40]


def pack_name(*, started_ns: int, number: int) -> str:
    """Return a name that sorts by age: ``started_ns`` of the agent's life, then its packs."""
    return f"{started_ns:016x}-{number:08x}{PACK_SUFFIX}"


def is_pack(name: str) -> bool:
    """Whether a file's name is that of a pack."""
    return _PACK_NAME.fullmatch(name) is not None


def is_folder(name: str) -> bool:
    """Whether a directory's name is that of a partition."""
    return _FOLDER_NAME.fullmatch(name) is not None


def align(size: int) -> int:
    """Return ``size`` rounded up to whole blocks."""
    return -(-size // ALIGN) * ALIGN


def key_sum(key: Key) -> int:
    """Return the checksum to begin a chunk with: bytes of another key can't pass for its own."""
    group, digest = key
    return zlib.crc32(digest, zlib.crc32(group.to_bytes(4, "big")))


def encode(header: Header) -> bytes:
    """Return the header as it stands at the start of a file, padded to ``ALIGN``.

    Its length depends on everything but the values of ``sums``.
    """
    body = msgspec.msgpack.encode(header)
    raw = _PREFIX.pack(MAGIC, VERSION, zlib.crc32(body), len(body)) + body
    return raw.ljust(align(len(raw)), b"\0")


def encoded_bytes(first: bytes) -> int:
    """Return how long the header is whose first ``ALIGN`` bytes these are.

    Raises:
        DamagedError: it is no header of this version.
    """
    return align(_PREFIX.size + _prefix(first)[1])


def decode(raw: bytes) -> Header:
    """Return a header.

    Raises:
        DamagedError: it is cut off, changed or of another version.
    """
    expected, length = _prefix(raw)
    body = raw[_PREFIX.size : _PREFIX.size + length]
    if len(body) != length:
        raise DamagedError("truncated", f"a header of {length} bytes ends after {len(body)}")
    if zlib.crc32(body) != expected:
        raise DamagedError("checksum", "the header's checksum differs")
    try:
        header = msgspec.msgpack.decode(body, type=Header)
    except msgspec.MsgspecError as error:
        raise DamagedError("header", str(error)) from error
    if len(header.sums) != 4 * len(header.keys) or header.ranks < 1 or header.row_bytes < 1:
        raise DamagedError("header", "its columns differ in length, or a size is not positive")
    return header


def check_owner(header: Header, *, folder: str, name: str) -> None:
    """See that a header was written for the place where it lies.

    Raises:
        DamagedError: the file was renamed, or is of another partition.
    """
    if header.name != name:
        raise DamagedError("foreign", f"it was written as {header.name}")
    if folder_name(header.namespace, header.fingerprint) != folder:
        raise DamagedError("foreign", "it is of another partition")


def file_bytes(*, header_bytes: int, chunks: int, chunk_bytes: int) -> int:
    """Return the length of a pack."""
    return align(header_bytes + chunks * chunk_bytes)


def pack_lengths(*, chunks: int, chunk_bytes: int) -> Sequence[int]:
    """Split a store into packs; returns the chunks of each, none of which is 0."""
    each = max(1, min(PACK_BYTES // chunk_bytes, PACK_CHUNKS))
    full, rest = divmod(chunks, each)
    return [each] * full + ([rest] if rest else [])


def _prefix(raw: bytes) -> tuple[int, int]:
    """Return (checksum, length) of the body."""
    if len(raw) < _PREFIX.size:
        raise DamagedError("truncated", f"{len(raw)} bytes are no header")
    magic, version, expected, length = _PREFIX.unpack_from(raw)
    if magic != MAGIC:
        raise DamagedError("foreign", "no pack file begins so")
    if version != VERSION:
        raise DamagedError("version", f"version {version} is not {VERSION}")
    if length > MAX_HEADER_BYTES:
        raise DamagedError("header", f"a header of {length} bytes is above {MAX_HEADER_BYTES}")
    return expected, length
