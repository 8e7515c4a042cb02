"""What follows from an engine's configuration (``scheduler.md`` sections 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass

from kvoffload_agent.scheduler.types import GroupKind, SchedulerConfig


class GeometryError(ValueError):
    """An engine's configuration contradicts itself; the engine has to be configured otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One KV cache group. ``chunk`` and ``window_tokens`` in tokens, ``window`` in chunks.

    ``stride``: hashes per chunk. ``window``: 0 for full attention. ``align``: Mamba whose state
    is stored through hand-offs only.
    """

    number: int
    kind: GroupKind
    tokens_per_block: int
    chunk: int
    stride: int
    window: int
    window_tokens: int
    extra: int
    eagle: bool
    align: bool

    @property
    def windowed(self) -> bool:
        """Whether a hit needs only the chunks before its end."""
        return self.kind is not GroupKind.FULL

    def window_at(self, end: int) -> int:
        """Return how many chunks before ``end`` (tokens) a hit there needs.

        Before an end inside a chunk the allocator keeps history that reaches further left.
        """
        if self.kind is not GroupKind.SLIDING_WINDOW:
            return self.window
        needed = self.window_tokens - 1 + self.extra + -end % self.chunk
        return max(self.window, ceil_div(needed, self.chunk))


class Geometry:
    """All groups of an engine, and the orders and alignments that they share.

    Raises:
        GeometryError: blocks are no multiple of hashes, chunks are empty, or a retention interval
            is no whole number of chunks.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        _check(config)
        self.tokens_per_hash = config.tokens_per_hash
        self.blocks_per_chunk = config.blocks_per_chunk
        self.groups = [_group(config, number) for number in range(len(config.groups))]
        full = [group for group in self.groups if not group.windowed]
        self.windowed = sorted(
            (group for group in self.groups if group.windowed),
            key=lambda group: group.window,
            reverse=True,
        )
        self.lookup_order = full + self.windowed
        aligned = {group.chunk for group in self.groups if group.align}
        if len(aligned) > 1:
            raise GeometryError(f"Mamba groups in align mode have chunks of {sorted(aligned)}")
        self.mamba_chunk = aligned.pop() if aligned else 0
        """Chunk of the align-mode Mamba groups in tokens, 0 if there are none."""
        chunks = {group.chunk for group in full} or {max(group.chunk for group in self.groups)}
        self.alignment = chunks.pop() if len(chunks) == 1 else 0
        """Tokens at whose multiples a hit can end, 0 if groups differ."""
        self.sync_budget = config.sync_load_budget_bytes if len(self.groups) == 1 else 0
        """Bytes of a step's synchronous loads. None with several groups: if such a load failed,
        vLLM could not compute its blocks again (DESIGN section 5)."""
        self._block_bytes = config.block_bytes
        self.retention = config.retention_interval
        self.partial_tail = self._has_partial_tail()
        self.eagle_margin = 0
        if any(group.eagle and not group.align for group in self.groups):
            self.eagle_margin = self.tokens_per_hash  # no block is finer than a hash

    def load_bytes(self, tokens: int) -> int:
        """Return the bytes that a load of so many tokens takes on one worker; of one group only."""
        return ceil_div(tokens * self._block_bytes, self.groups[0].tokens_per_block)

    def _has_partial_tail(self) -> bool:
        blocks = {group.tokens_per_block for group in self.groups}
        return (
            self.blocks_per_chunk == 1
            and len(blocks) == 1
            and self.mamba_chunk > self.tokens_per_hash
            and all(group.align for group in self.windowed)
        )


def ceil_div(dividend: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-dividend // divisor)


def _check(config: SchedulerConfig) -> None:
    if not config.groups:
        raise GeometryError("an engine without KV cache groups has nothing to offload")
    if config.blocks_per_chunk <= 0 or config.tokens_per_hash <= 0:
        raise GeometryError("blocks_per_chunk and tokens_per_hash must be at least 1")
    if config.sync_load_budget_bytes < 0 or config.block_bytes < 0:
        raise GeometryError("sync_load_budget_bytes and block_bytes must not be negative")
    if config.sync_load_budget_bytes and not config.block_bytes:
        raise GeometryError("a budget for synchronous loads needs the bytes of a block")
    if config.num_workers <= 0:
        raise GeometryError("an engine has at least one worker")
    for group in config.groups:
        if group.tokens_per_block <= 0 or group.tokens_per_block % config.tokens_per_hash:
            raise GeometryError(
                f"blocks of {group.tokens_per_block} tokens are no multiple of the"
                f" {config.tokens_per_hash} tokens of a hash"
            )
        chunk = group.tokens_per_block * config.blocks_per_chunk
        retention = config.retention_interval
        if group.kind is GroupKind.FULL or retention is None:
            continue
        if retention < 0 or retention % chunk:
            raise GeometryError(
                f"a retention interval of {retention} tokens is no multiple of the {chunk} tokens"
                " of a chunk"
            )


def _group(config: SchedulerConfig, number: int) -> Group:
    group = config.groups[number]
    chunk = group.tokens_per_block * config.blocks_per_chunk
    window = 0
    match group.kind:
        case GroupKind.SLIDING_WINDOW:
            kept = group.window - 1 + group.extra_retained_tokens
            window = max(ceil_div(group.window, chunk), ceil_div(kept, chunk))
        case GroupKind.CHUNKED_LOCAL:
            window = ceil_div(group.window, chunk)
        case GroupKind.MAMBA:
            window = 1
        case GroupKind.FULL:
            pass
    return Group(
        number=number,
        kind=group.kind,
        tokens_per_block=group.tokens_per_block,
        chunk=chunk,
        stride=chunk // config.tokens_per_hash,
        window=window,
        window_tokens=group.window,
        extra=group.extra_retained_tokens,
        eagle=group.eagle,
        align=group.kind is GroupKind.MAMBA and group.mamba_align,
    )
