"""The connector's role in the engine's scheduler: asks the agent, never waits long for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvoffload_api.wire.messages import Handoff
from kvoffload_client.jobs import JobKey
from kvoffload_client.outcomes import ScheduledRequest, StepInput
from kvoffload_client.scheduler import SchedulerSession
from kvoffload_client.settings import ClientSettings
from kvoffload_client.vllm.identity import EngineShape, engine_layout, initial_hash
from kvoffload_client.vllm.metadata import StepMetadata, WorkerReport
from kvoffload_client.vllm.params import forwardable


@dataclass(slots=True, kw_only=True)
class _Request:
    """One request between its arrival and the step that tells of its end.

    ``hashes`` and ``tokens``: what the agent knows of it. ``computed``: its prefix on the device
    at the last match. ``load_blocks``: the blocks that its load is to fill, while one is under
    way. ``load_failed``: it loads nothing any more, so that a broken chunk cannot be tried for
    ever.
    """

    handle: int
    request: Any
    hashes: int
    tokens: int
    computed: int = 0
    load_blocks: tuple[int, ...] | None = None
    load_failed: bool = False
    ended: bool = False


class SchedulerRole:
    """Translates the engine's scheduler hooks into a ``SchedulerSession``."""

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        *,
        settings: ClientSettings,
        shape: EngineShape,
        blocks_per_chunk: int,
    ) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._shape = shape
        self._blocks_per_chunk = blocks_per_chunk
        self._requests: dict[str, _Request] = {}
        self._by_handle: dict[int, _Request] = {}
        self._ranks_ended: dict[JobKey, int] = {}
        self._failed: set[JobKey] = set()
        self._loading: dict[JobKey, int] = {}
        self._busy = False
        self._session: SchedulerSession | None = None
        self._begin()

    def _begin(self) -> SchedulerSession | None:
        """Start the session as soon as the engine's initial hash is known."""
        if self._session is None:
            none_hash = initial_hash(self._vllm_config)
            if none_hash is not None:
                layout = engine_layout(
                    self._vllm_config,
                    self._kv_cache_config,
                    shape=self._shape,
                    blocks_per_chunk=self._blocks_per_chunk,
                    none_hash=none_hash,
                )
                self._session = SchedulerSession(settings=self._settings, layout=layout)
                self._session.start()
        return self._session

    def on_new_request(self, request: Any) -> None:
        """Announce a request with its ``kv_transfer_params``, which the agent validates."""
        session = self._begin()
        if session is None:
            return
        handle = session.new_request(
            request_id=request.request_id,
            num_tokens=request.num_tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            hashes=request.block_hashes,
            params=forwardable(request.kv_transfer_params),
            skip_reading_prefix_cache=bool(request.skip_reading_prefix_cache),
        )
        known = _Request(
            handle=handle,
            request=request,
            hashes=len(request.block_hashes),
            tokens=request.num_tokens,
        )
        self._requests[request.request_id] = known
        self._by_handle[handle] = known

    def match(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Return (tokens loadable beyond ``computed``, asynchronously), None tokens: ask later."""
        known = self._requests.get(request.request_id)
        if known is None or self._session is None or known.load_failed:
            return 0, False
        self._append(known, exactly=True)
        known.computed = computed
        outcome = self._session.match(known.handle, computed=computed)
        return outcome.tokens, bool(outcome.tokens)

    def alloc(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """Tell the request's block table (``KVCacheBlocks``) after an allocation."""
        known = self._requests.get(request.request_id)
        if known is None or self._session is None:
            return
        table = [[_encoded(block) for block in group] for group in blocks.blocks]
        if external_tokens:
            end = known.computed + external_tokens
            known.load_blocks = tuple(
                block
                for ids, group in zip(table, self._shape.groups, strict=True)
                for block in ids[: -(-end // group.tokens_per_block)]
                if block > 0
            )
        self._session.alloc(known.handle, external_tokens=external_tokens, blocks=table)

    def step(self, output: Any) -> StepMetadata:
        """Build the workers' jobs of one step (``SchedulerOutput``)."""
        if self._session is None:
            return StepMetadata()
        for request_id in output.num_scheduled_tokens:
            if request_id in self._requests:
                self._append(self._requests[request_id], exactly=False)
        outcome = self._session.step(self._step_input(output))
        self._busy = outcome.busy
        loads, failed_loads = [], {}
        for job in outcome.loads:
            self._loading[job.key] = job.handle
            loads.append((self._by_handle[job.handle].request.request_id, job))
        for handle in outcome.failed_loads:
            known = self._by_handle[handle]
            failed_loads[known.request.request_id] = known.load_blocks or ()
            self._load_ended(handle, failed=True)
        for request_id in output.finished_req_ids:
            self._forget(request_id)
        return StepMetadata(
            flush=outcome.flush,
            loads=tuple(loads),
            failed_loads=failed_loads,
            stores=outcome.stores,
        )

    def workers_reported(self, report: object) -> None:
        """Take the workers' reports; a job has ended when every rank has ended it."""
        if not isinstance(report, WorkerReport) or self._session is None:
            return
        self._failed |= report.failed
        ended = []
        for key, ranks in report.ended.items():
            total = self._ranks_ended.pop(key, 0) + ranks
            if total < self._shape.world_size:
                self._ranks_ended[key] = total
                continue
            ended.append(key)
            failed = key in self._failed
            self._failed.discard(key)
            if key in self._loading:
                self._load_ended(self._loading.pop(key), failed=failed)
        self._session.complete(ended)

    def finished(self, request: Any) -> None:
        """Tell that a request ended; its last blocks are stored in the next step."""
        known = self._requests.get(request.request_id)
        if known is None or self._session is None:
            return
        self._append(known, exactly=True)
        status = _STATUS.get(request.status.name, "aborted")
        self._session.finish(known.handle, status=status, computed=request.num_computed_tokens)

    def reset(self) -> bool:
        """Reset the agent's side with the device's prefix cache."""
        return self._session is None or self._session.reset()

    @property
    def busy(self) -> bool:
        """Whether the engine must keep stepping although it has nothing to compute."""
        return self._busy

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()

    def _append(self, known: _Request, *, exactly: bool) -> None:
        """Tell the agent how the request has grown.

        Not for every token: between lookups only filled blocks matter, and a busy engine has
        hundreds of requests that grow in each step.
        """
        request = known.request
        hashes = request.block_hashes[known.hashes :]
        if hashes or (exactly and request.num_tokens != known.tokens):
            assert self._session is not None
            self._session.append(known.handle, num_tokens=request.num_tokens, hashes=hashes)
            known.hashes = len(request.block_hashes)
            known.tokens = request.num_tokens

    def _step_input(self, output: Any) -> StepInput:
        state = output.kv_connector_block_state
        handoffs = state.boundary_state_offloads if state is not None else {}
        return StepInput(
            requests=tuple(self._scheduled(output)),
            finished=self._handles(output.finished_req_ids),
            preempted=self._handles(output.preempted_req_ids or ()),
            handoffs=tuple(
                Handoff(handle=known.handle, group=group, block=block, boundary=boundary)
                for request_id, entries in handoffs.items()
                if (known := self._requests.get(request_id)) is not None
                for group, block, boundary in entries
            ),
            copies=tuple(
                (copy.src_block_id, copy.dst_block_id)
                for copy in output.kv_cache_block_copies or ()
            ),
            shared_prefix_boundaries={
                known.handle: boundary
                for request_id in output.num_scheduled_tokens
                if (known := self._requests.get(request_id)) is not None
                and (boundary := getattr(known.request, "shared_prefix_boundary", 0))
            },
        )

    def _scheduled(self, output: Any) -> Iterator[ScheduledRequest]:
        """Yield the step's requests in the order of ``num_scheduled_tokens``."""
        new = {data.req_id: data for data in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        places = {request_id: place for place, request_id in enumerate(cached.req_ids)}
        for request_id, scheduled in output.num_scheduled_tokens.items():
            known = self._requests.get(request_id)
            if known is None:
                continue
            if request_id in new:
                computed, blocks = new[request_id].num_computed_tokens, new[request_id].block_ids
            else:
                place = places[request_id]
                computed, blocks = cached.num_computed_tokens[place], cached.new_block_ids[place]
            yield ScheduledRequest(
                handle=known.handle,
                computed=computed,
                scheduled=scheduled,
                blocks=blocks or (),
                new=request_id in new,
                resumed=request_id in cached.resumed_req_ids,
            )

    def _handles(self, request_ids: Any) -> tuple[int, ...]:
        return tuple(
            self._requests[request_id].handle
            for request_id in request_ids
            if request_id in self._requests
        )

    def _load_ended(self, handle: int, *, failed: bool) -> None:
        known = self._by_handle[handle]
        known.load_blocks = None
        known.load_failed = known.load_failed or failed
        if known.ended:
            del self._by_handle[handle]

    def _forget(self, request_id: str) -> None:
        """Drop a request; one whose load is under way is still needed to name it."""
        known = self._requests.pop(request_id, None)
        if known is not None:
            known.ended = True
            if known.load_blocks is None:
                del self._by_handle[known.handle]


_STATUS = {"FINISHED_STOPPED": "stopped", "FINISHED_LENGTH_CAPPED": "length"}


def _encoded(block: Any) -> int:
    """Return a block's id as ``Alloc`` wants it: 0 for the null block, negative if it is hashed."""
    if block.is_null:
        return 0
    return -int(block.block_id) if block.block_hash is not None else int(block.block_id)
