"""Messages of one engine's session with the node agent (DESIGN section 4).

One scheduler connection decides, ``world_size`` worker connections copy.
Messages of one connection are handled in the order in which they were sent, so a side that
stopped waiting for a reply is still in step with the other one.
Requests are named by a ``handle`` that the engine chooses, unique within its session for ever;
``seq`` ties a reply to its question.

Columns of numbers travel as one blob of little-endian 64-bit integers each (``int64`` unless the
field says ``uint64``): decoding a list costs more than the rest of the message
(``datapath.md`` section 4.2).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvoffload_api.wire.base import MAX_GROUPS, MAX_ITEMS, Groups, Items, Message
from kvoffload_api.wire.copying import Copied, Share, Shared, Start, Stop
from kvoffload_api.wire.params import NO_PARAMS

__all__ = ["MAX_GROUPS", "MAX_ITEMS", "Copied", "Groups", "Items", "Message"]

PROTOCOL_VERSION = 1


# --- engine to agent -------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of every connection.

    ``role`` is ``scheduler`` or ``worker``; a worker names the session it joins by the
    ``session_key`` that its scheduler used (engine-chosen, unguessable) and its ``rank``.
    ``token`` is the projected ServiceAccount token; a standalone agent asks SO_PEERCRED instead.
    A worker may say hello before its scheduler: it waits until the session exists.
    """

    protocol: int
    role: str
    session_key: str
    rank: int
    token: str
    client_version: str


class Group(Message, frozen=True):
    """One KV cache group of the engine.

    ``kind``: ``full``, ``sliding_window``, ``chunked_local`` or ``mamba``.
    ``block_bytes``: bytes of one block of all the group's layers on one rank, as copied.
    ``window`` is in tokens (0: none).
    """

    kind: str
    tokens_per_block: int
    block_bytes: int
    window: int = 0
    eagle: bool = False
    mamba_align: bool = False
    extra_retained_tokens: int = 0


class Register(Message, frozen=True):
    """Scheduler connection: what this engine is. Answered by ``Registered`` or ``Refused``.

    ``fingerprint`` is the hex sha256 of the canonical msgpack of ``identity`` (model, revision,
    KV dtype, group specs, block sizes, parallel layout, hash algorithm, initial hash, layout
    version): engines share chunks only within one namespace and fingerprint.
    ``block_hash_bytes`` is the length of one block hash.
    ``sync_load_budget_bytes``: what each worker may load before the forward of one step. With 0,
    the default, every load is asynchronous; more is for an engine that waits for ``AllocReply``
    and its copies before that forward.
    ``copies``: who copies, ``engine`` or ``agent``; for the latter see ``wire.copying``.
    """

    seq: int
    fingerprint: str
    identity: bytes
    world_size: int
    tokens_per_hash: int
    blocks_per_chunk: int
    block_hash_bytes: int
    groups: Groups[Group]
    enable_prefix_caching: bool = True
    prefix_cache_retention_interval: int | None = None
    sync_load_budget_bytes: int = 0
    copies: str = "engine"


class NewRequest(Message, frozen=True):
    """A request arrived. No reply.

    ``hashes``: its block hashes so far, concatenated. ``params``: the client's
    ``kv_transfer_params`` as ``pack_params`` packs them; the agent validates them.
    """

    handle: int
    request_id: str
    num_tokens: int
    num_prompt_tokens: int
    hashes: bytes
    params: msgspec.Raw = NO_PARAMS
    skip_reading_prefix_cache: bool = False


class Append(Message, frozen=True):
    """A request grew to ``num_tokens``; ``hashes`` are the block hashes that came with it."""

    handle: int
    num_tokens: int
    hashes: bytes


class Match(Message, frozen=True):
    """How many tokens beyond ``computed`` can be loaded? Answered by ``MatchReply``."""

    seq: int
    handle: int
    computed: int
    max_new_tokens: int | None = None


class Alloc(Message, frozen=True):
    """The engine allocated blocks for a request. Answered by ``AllocReply``.

    ``blocks``: per group the whole block table of the request as an int64 blob, with the
    encoding of the recorded cases: negative = the block already has a hash, 0 = null block.
    """

    seq: int
    handle: int
    external_tokens: int
    blocks: Groups[bytes]


class ScheduledBlocks(Message, frozen=True):
    """Block ids of a request in a step: per group an int64 blob.

    For a new or resumed request its whole table, else the added ones.
    """

    handle: int
    blocks: Groups[bytes]


class Handoff(Message, frozen=True):
    """A Mamba copy-on-write hand-off: ``block`` of ``group`` holds the state at ``boundary``."""

    handle: int
    group: int
    block: int
    boundary: int


class Step(Message, frozen=True):
    """One scheduling step of the engine. Answered by ``StepReply``.

    ``handles``, ``computed``, ``scheduled``: int64 blobs of equal length, requests in the order
    of the engine's ``num_scheduled_tokens``; ``computed`` is before the step.
    ``new``/``resumed``: handles among them that are scheduled first (again).
    ``finished`` and ``preempted`` since the last step. ``copies``: (source, destination) blocks.
    """

    seq: int
    handles: bytes
    computed: bytes
    scheduled: bytes
    blocks: Items[ScheduledBlocks]
    new: Items[int]
    resumed: Items[int]
    finished: Items[int]
    preempted: Items[int]
    handoffs: Items[Handoff] = msgspec.field(default_factory=list)
    copies: Items[tuple[int, int]] = msgspec.field(default_factory=list)
    shared_prefix_boundaries: Annotated[dict[int, int], msgspec.Meta(max_length=MAX_ITEMS)] = (
        msgspec.field(default_factory=dict)
    )


class Finish(Message, frozen=True):
    """A request ended: ``status`` is ``stopped``, ``length`` or ``aborted``. No reply."""

    handle: int
    status: str
    computed: int


class Reset(Message, frozen=True):
    """The engine reset its prefix cache with the connector's. Answered by ``ResetReply``."""

    seq: int


class Complete(Message, frozen=True):
    """Worker (or the scheduler for a plan it never started): copies of these jobs ended. No reply.

    ``failed`` jobs wrote or loaded nothing that may be used.
    """

    done: Items[int]
    failed: Items[int]


class Mapped(Message, frozen=True):
    """Worker: these segments are mapped (and registered) and may appear in plans."""

    segments: Items[int]


class Unmapped(Message, frozen=True):
    """Worker: these segments are no longer mapped."""

    segments: Items[int]


# --- agent to engine -------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """Answer to ``Hello``. The boot id is in every frame's header from here on.

    ``session``: to a worker, the number of the session that it joined (``Registered.session``).
    """

    agent_version: str
    namespace: str
    pod: str
    session: int = 0


class Refused(Message, frozen=True):
    """The agent refuses the question ``seq``, or (-1) the connection, which it then closes.

    ``code``: ``protocol``, ``identity``, ``layout``, ``busy`` or ``internal``. ``message`` says
    what was wrong and what to do.
    """

    seq: int
    code: str
    message: str


class Registered(Message, frozen=True):
    """The session's partition. ``slot_bytes``: bytes of one chunk's row on one rank.

    ``session``: a number of this session that no other one of this boot has. A worker runs only
    plans of the session that it joined: one of an earlier session could write where another
    engine's chunk is by now.
    """

    seq: int
    partition: str
    slot_bytes: int
    session: int = 0


class Plan(Message, frozen=True):
    """One job's copies: entry i moves ``lengths[group]`` bytes between block and segment.

    ``blocks`` int64, ``segments`` uint64, ``offsets`` uint64: equal lengths, ``group_sizes``
    entries of group 0 first, then group 1 and so on. ``segments`` names the segment of rank 0:
    the segments of one row set have consecutive ids by rank, so a worker adds its rank.
    """

    job: int
    handle: int
    blocks: bytes
    segments: bytes
    offsets: bytes
    group_sizes: list[int]
    lengths: list[int]


class MatchReply(Message, frozen=True):
    """``tokens`` is None for "ask later".

    ``load_async``: the request waits for its load while steps pass. False with tokens only if the
    engine registered a budget for that.
    ``limited_by``: the field that shortened the answer (``load.maxTokens``, ...), ``""`` if none
    did; ``policy``: who set it, as in provenance (``KVOffloadPolicy/ns/name``, ``request``, ...).
    """

    seq: int
    tokens: int | None
    load_async: bool
    limited_by: str = ""
    policy: str = ""


class AllocReply(Message, frozen=True):
    """``load`` is None if nothing is to be loaded. ``deadline_seconds``: load.timeoutSeconds."""

    seq: int
    load: Plan | None
    deadline_seconds: float = 0.0


class StepReply(Message, frozen=True):
    """``stores``: plans that workers start at the beginning of the next step.

    ``flush``: jobs that workers must finish before the step's blocks are written; ``busy``: keep
    stepping, something is not acknowledged yet.
    """

    seq: int
    stores: list[Plan]
    flush: list[int]
    busy: bool


class ResetReply(Message, frozen=True):
    """The partition's host tier forgot what this engine's reset makes it forget."""

    seq: int


class SegmentInfo(Message, frozen=True):
    """``bytes`` is the segment's length; it is sealed against growing and shrinking."""

    segment: int
    bytes: int


class Map(Message, frozen=True):
    """To a worker: map these segments; as many fds come with the frame, in this order."""

    segments: list[SegmentInfo]


class Unmap(Message, frozen=True):
    """To a worker: stop using and unmap these, then answer ``Unmapped``."""

    segments: list[int]


class CapsChanged(Message, frozen=True):
    """The pod's effective policy changed; for logs and status, the agent enforces it itself."""

    entry: str
    max_load_tokens: int | None
    max_offload_tokens: int | None
    policy: str


FromEngine = (
    Hello
    | Register
    | NewRequest
    | Append
    | Match
    | Alloc
    | Step
    | Finish
    | Reset
    | Complete
    | Mapped
    | Unmapped
    | Share
    | Start
    | Stop
)
FromAgent = (
    Welcome
    | Refused
    | Registered
    | MatchReply
    | AllocReply
    | StepReply
    | ResetReply
    | Map
    | Unmap
    | CapsChanged
    | Shared
    | Copied
)
