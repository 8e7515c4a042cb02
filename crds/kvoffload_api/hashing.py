"""Short hashes of values, equal on every replica and in every version that sees equal values."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from kvoffload_api.names import ConfigHash

# 64 bits: at 100,000 distinct values the chance of one collision is below 1 in a billion.
_DIGEST_BYTES: Final = 8


def canonical_json(value: Any) -> str:
    """Return the JSON text of a JSON value with sorted keys and without blanks.

    Raises:
        TypeError: It holds something that JSON has no form for.
        ValueError: It holds NaN or an infinity.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def config_hash(value: Any) -> ConfigHash:
    """Return 16 hexadecimal digits that identify a JSON value."""
    digest = hashlib.sha256(canonical_json(value).encode()).digest()
    return ConfigHash(digest[:_DIGEST_BYTES].hex())
