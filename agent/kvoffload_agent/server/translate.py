"""Wire messages to the scheduler's values and back; every number from the wire is checked here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from kvoffload_agent.partitions.space import SlotSpace
from kvoffload_agent.scheduler.types import (
    Blocks,
    CopyPlan,
    GroupConfig,
    GroupKind,
    Handoff,
    ScheduledRequest,
    SchedulerConfig,
    StepInput,
)
from kvoffload_api.wire import messages as wire

# Bounds of a registration: far above any model, low enough that sums stay within 64 bits.
MAX_RANKS = 64
MAX_BLOCK_BYTES = 1 << 32
MAX_TOKENS = 1 << 31
MAX_HASH_BYTES = 64
MAX_BLOCKS = 1 << 31
MAX_SYNC_LOAD_BYTES = 1 << 48


class WireError(Exception):
    """A message is well-formed msgpack and makes no sense; the engine's side must be mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """What ``Register`` said, checked. ``block_bytes`` per group on one rank.

    ``delegated``: the agent copies.
    """

    scheduler: SchedulerConfig
    block_bytes: tuple[int, ...]
    hash_bytes: int
    ranks: int
    delegated: bool = False

    @property
    def layout(self) -> Hashable:
        """What engines that share chunks must have in common: keys, and places within a row."""
        return (
            self.hash_bytes,
            self.scheduler.tokens_per_hash,
            self.scheduler.blocks_per_chunk,
            self.block_bytes,
            self.tokens_per_block,
        )

    @property
    def tokens_per_block(self) -> tuple[int, ...]:
        """Tokens of one block of each group."""
        return tuple(group.tokens_per_block for group in self.scheduler.groups)


def shape_of(message: wire.Register) -> EngineShape:
    """Check a registration.

    Raises:
        WireError: a number is out of bounds, or a group's kind is unknown.
    """
    within("groups", len(message.groups), 1, wire.MAX_GROUPS)
    within("world_size", message.world_size, 1, MAX_RANKS)
    within("tokens_per_hash", message.tokens_per_hash, 1, MAX_TOKENS)
    within("blocks_per_chunk", message.blocks_per_chunk, 1, MAX_TOKENS)
    within(
        "prefix_cache_retention_interval",
        message.prefix_cache_retention_interval or 0,
        0,
        MAX_TOKENS,
    )
    within("sync_load_budget_bytes", message.sync_load_budget_bytes, 0, MAX_SYNC_LOAD_BYTES)
    if message.copies not in ("engine", "agent"):
        raise WireError(f"copies is {message.copies!r}, it must be engine or agent")
    within("block_hash_bytes", message.block_hash_bytes, 1, MAX_HASH_BYTES)
    for group in message.groups:
        within("tokens_per_block", group.tokens_per_block, 1, MAX_TOKENS)
        within("block_bytes", group.block_bytes, 1, MAX_BLOCK_BYTES)
        within("window", group.window, 0, MAX_TOKENS)
        within("extra_retained_tokens", group.extra_retained_tokens, 0, MAX_TOKENS)
    within(
        "blocks_per_chunk * block_bytes",
        message.blocks_per_chunk * max(group.block_bytes for group in message.groups),
        1,
        MAX_BLOCK_BYTES,
    )
    return EngineShape(
        scheduler=SchedulerConfig(
            groups=[_group(group) for group in message.groups],
            tokens_per_hash=message.tokens_per_hash,
            blocks_per_chunk=message.blocks_per_chunk,
            num_workers=message.world_size,
            enable_prefix_caching=message.enable_prefix_caching,
            retention_interval=message.prefix_cache_retention_interval,
            sync_load_budget_bytes=message.sync_load_budget_bytes,
            block_bytes=message.groups[0].block_bytes,
        ),
        block_bytes=tuple(group.block_bytes for group in message.groups),
        hash_bytes=message.block_hash_bytes,
        ranks=message.world_size,
        delegated=message.copies == "agent",
    )


def _group(group: wire.Group) -> GroupConfig:
    try:
        kind = GroupKind(group.kind)
    except ValueError as error:
        raise WireError(f"group kind {group.kind!r} is none of {', '.join(GroupKind)}") from error
    return GroupConfig(
        kind=kind,
        tokens_per_block=group.tokens_per_block,
        window=group.window,
        eagle=group.eagle,
        mamba_align=group.mamba_align,
        extra_retained_tokens=group.extra_retained_tokens,
    )


def hashes_of(blob: bytes, *, shape: EngineShape, num_tokens: int) -> list[bytes]:
    """Cut a blob of block hashes.

    Raises:
        WireError: it is no whole number of hashes, or more than the tokens have.
    """
    within("num_tokens", num_tokens, 0, MAX_TOKENS)
    size = shape.hash_bytes
    count, rest = divmod(len(blob), size)
    if rest:
        raise WireError(f"{len(blob)} bytes are no whole number of hashes of {size} bytes")
    if count > num_tokens // shape.scheduler.tokens_per_hash:
        raise WireError(f"{count} hashes are more than {num_tokens} tokens have")
    return [blob[at : at + size] for at in range(0, len(blob), size)]


def blocks_of(blobs: Sequence[bytes], *, shape: EngineShape) -> list[Blocks]:
    """Decode one int64 blob for each group.

    Raises:
        WireError: their number is not that of the groups, or one is cut off or out of bounds.
    """
    if len(blobs) != len(shape.block_bytes):
        raise WireError(f"{len(blobs)} block tables for {len(shape.block_bytes)} groups")
    tables = [int64s(blob) for blob in blobs]
    for table in tables:
        if len(table):
            within("a block id", int(table.min()), -MAX_BLOCKS, MAX_BLOCKS)
            within("a block id", int(table.max()), -MAX_BLOCKS, MAX_BLOCKS)
    return tables


def int64s(blob: bytes) -> Blocks:
    """Decode an int64 blob.

    Raises:
        WireError: its length is no multiple of 8.
    """
    if len(blob) % 8:
        raise WireError(f"{len(blob)} bytes are no whole number of 64-bit integers")
    return np.frombuffer(blob, dtype="<i8")


def step_of(message: wire.Step, *, shape: EngineShape, known: Callable[[int], bool]) -> StepInput:
    """Translate a step; handles that are not ``known`` were refused before and are left out.

    Raises:
        WireError: its columns differ in length, or a number is out of bounds.
    """
    handles, computed, scheduled = (
        int64s(blob).tolist() for blob in (message.handles, message.computed, message.scheduled)
    )
    if not len(handles) == len(computed) == len(scheduled):
        raise WireError(
            f"a step of {len(handles)} handles, {len(computed)} computed and"
            f" {len(scheduled)} scheduled"
        )
    if len(set(handles)) != len(handles):
        raise WireError("a step names a handle twice")
    blocks = {entry.handle: blocks_of(entry.blocks, shape=shape) for entry in message.blocks}
    new, resumed = set(message.new), set(message.resumed)
    for handle in new | resumed:
        if handle not in blocks and known(handle):
            raise WireError(f"handle {handle} is new or resumed and has no block table")
    for count in (*computed, *scheduled, *message.shared_prefix_boundaries.values()):
        within("tokens", count, 0, MAX_TOKENS)
    handoffs: dict[int, list[Handoff]] = {}
    for item in message.handoffs:
        within("group of a hand-off", item.group, 0, len(shape.block_bytes) - 1)
        within("block of a hand-off", item.block, -MAX_BLOCKS, MAX_BLOCKS)
        within("boundary of a hand-off", item.boundary, 0, MAX_TOKENS)
        handoffs.setdefault(item.handle, []).append(
            Handoff(group=item.group, block=item.block, boundary=item.boundary)
        )
    return StepInput(
        requests=[
            ScheduledRequest(
                handle=handle,
                computed=before,
                scheduled=now,
                blocks=blocks.get(handle),
                new=handle in new,
                resumed=handle in resumed,
            )
            for handle, before, now in zip(handles, computed, scheduled, strict=True)
            if known(handle)
        ],
        finished=[handle for handle in message.finished if known(handle)],
        preempted=[handle for handle in message.preempted if known(handle)],
        handoffs={handle: items for handle, items in handoffs.items() if known(handle)},
        copies=message.copies,
        shared_prefix_boundaries={
            handle: boundary
            for handle, boundary in message.shared_prefix_boundaries.items()
            if known(handle)
        },
    )


def plan_of(plan: CopyPlan, *, shape: EngineShape, space: SlotSpace) -> wire.Plan:
    """Turn slots into places: one row of numpy for all entries of a plan."""
    lengths = np.array(shape.block_bytes, dtype=np.int64)
    within = plan.index * np.repeat(lengths, plan.group_sizes)
    segments, offsets = space.locate(plan.slots, within)
    return wire.Plan(
        job=plan.job,
        handle=plan.handle,
        blocks=np.ascontiguousarray(plan.blocks, dtype="<i8").tobytes(),
        segments=np.ascontiguousarray(segments, dtype="<u8").tobytes(),
        offsets=np.ascontiguousarray(offsets, dtype="<u8").tobytes(),
        group_sizes=list(plan.group_sizes),
        lengths=list(shape.block_bytes),
    )


def plan_bytes(plan: CopyPlan, *, shape: EngineShape) -> int:
    """Return the bytes that one rank copies for a plan."""
    return sum(
        count * size for count, size in zip(plan.group_sizes, shape.block_bytes, strict=True)
    )


def plan_tokens(plan: CopyPlan, *, shape: EngineShape) -> int:
    """Return the tokens that a plan's blocks hold: those of the group with most."""
    return max(
        count * tokens
        for count, tokens in zip(plan.group_sizes, shape.tokens_per_block, strict=True)
    )


def within(what: str, value: int, low: int, high: int) -> None:
    """Check a number from the wire.

    Raises:
        WireError: it is out of bounds.
    """
    if not low <= value <= high:
        raise WireError(f"{what} is {value}, it must be within {low} and {high}")
