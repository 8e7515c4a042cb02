"""Requests from a Mooncake trace, scaled down, with tokens and chained block hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.engine.content import GOLDEN, splitmix

TOKENS_PER_BLOCK = 16
HASH_BYTES = 32

_TRACE_BLOCK_TOKENS = 512
_VOCABULARY = 128_000
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """``tokens``: the prompt and the output that the model will give, as bytes."""

    request_id: str
    num_prompt_tokens: int
    num_tokens: int
    tokens: bytes

    def hashes(self, initial: bytes) -> list[bytes]:
        """Return the chained hashes of all full blocks, prompt and output."""
        width = TOKENS_PER_BLOCK * _BYTES_PER_TOKEN
        parent = initial
        hashes = []
        for end in range(width, len(self.tokens) + 1, width):
            parent = hashlib.sha256(parent + self.tokens[end - width : end]).digest()
            hashes.append(parent)
        return hashes


def initial_hash(seed: int) -> bytes:
    """Return the parent of every first block; engines of different seeds share nothing."""
    return hashlib.sha256(f"tests.engine/{seed}".encode()).digest()


def read_trace(
    path: Path, *, limit: int, scale: int, shard: int = 0, shards: int = 1, max_tokens: int
) -> Iterator[TraceRequest]:
    """Yield every ``shards``-th request, lengths divided by ``scale``, at most ``max_tokens``.

    A trace block of 512 tokens becomes one of 512 / scale, so that prefixes are shared as in the
    trace.

    Raises:
        ValueError: the scale does not leave whole blocks.
    """
    per_id, rest = divmod(_TRACE_BLOCK_TOKENS, scale)
    if rest or per_id % TOKENS_PER_BLOCK:
        raise ValueError(f"a scale of {scale} does not leave whole blocks of {TOKENS_PER_BLOCK}")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number >= limit:
                return
            if number % shards == shard:
                yield _request(number, json.loads(line), per_id, scale, max_tokens)


def _request(
    number: int, record: dict[str, object], per_id: int, scale: int, max_tokens: int
) -> TraceRequest:
    ids, prompt, output = record["hash_ids"], record["input_length"], record["output_length"]
    assert isinstance(ids, list)
    assert isinstance(prompt, int)
    assert isinstance(output, int)
    num_output = min(max(1, output // scale), max_tokens // 4)
    num_prompt = min(max(1, prompt // scale), max_tokens - num_output)
    parts = [_tokens(2 * int(block), per_id) for block in ids]
    answer = _tokens(2 * number + 1, num_output)
    tokens = b"".join(parts)[: num_prompt * _BYTES_PER_TOKEN] + answer
    num_prompt = (len(tokens) - len(answer)) // _BYTES_PER_TOKEN
    return TraceRequest(
        request_id=f"trace-{number}",
        num_prompt_tokens=num_prompt,
        num_tokens=num_prompt + num_output,
        tokens=tokens,
    )


def make_request(
    request_id: str, *, prefix: int, num_prompt_tokens: int, num_output_tokens: int = 4
) -> TraceRequest:
    """Return a request whose prompt's tokens follow from ``prefix``, its output from its id."""
    answer = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:6], "little")
    return TraceRequest(
        request_id=request_id,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=num_prompt_tokens + num_output_tokens,
        tokens=_tokens(prefix, num_prompt_tokens) + _tokens(answer, num_output_tokens),
    )


def _tokens(seed: int, count: int) -> bytes:
    steps = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
    return (splitmix(seed, steps) % np.uint64(_VOCABULARY)).astype("<u4").tobytes()
