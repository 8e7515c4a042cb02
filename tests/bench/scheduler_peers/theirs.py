"""vLLM's own scheduler side of offloading, in process. Imported where vLLM is installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from tests.bench.scheduler_peers.workload import TOKENS_PER_BLOCK, Hashes, Shape
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import OffloadingKVEventsConfig, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import OffloadingGroupConfig
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus


class Theirs:
    """``OffloadingConnectorScheduler`` over a ``CPUOffloadingManager`` of ``capacity`` chunks."""

    def __init__(self, shape: Shape, *, capacity: int) -> None:
        tensor: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
        specs: list[Any] = [FullAttentionSpec(block_size=TOKENS_PER_BLOCK, **tensor)]
        if shape.window:
            specs.append(
                SlidingWindowSpec(
                    block_size=TOKENS_PER_BLOCK, sliding_window=shape.window, **tensor
                )
            )
        self.manager = CPUOffloadingManager(num_chunks=capacity, cache_policy=shape.policy)
        groups = [
            OffloadingGroupConfig(
                tokens_per_block=TOKENS_PER_BLOCK, layer_names=(f"layer{number}",), group_id=number
            )
            for number in range(len(specs))
        ]
        # Of these three objects the scheduler reads nothing else.
        spec: Any = SimpleNamespace(
            config=SimpleNamespace(groups=groups),
            blocks_per_chunk=1,
            tokens_per_hash=TOKENS_PER_BLOCK,
            tokens_per_block=tuple(TOKENS_PER_BLOCK for _ in specs),
            offload_prompt_only=False,
            kv_events_config=OffloadingKVEventsConfig(
                enable_kv_cache_events=False, self_describing_kv_events=False
            ),
            get_manager=lambda: self.manager,
        )
        engine: Any = SimpleNamespace(
            cache_config=SimpleNamespace(
                prefix_cache_retention_interval=None, enable_prefix_caching=True
            ),
            speculative_config=None,
            parallel_config=SimpleNamespace(decode_context_parallel_size=1, world_size=1),
        )
        caches = KVCacheConfig(
            num_blocks=1,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{number}"], item) for number, item in enumerate(specs)
            ],
        )
        self.scheduler = OffloadingConnectorScheduler(spec, engine, caches)
        self._groups = len(specs)
        self._names = count()

    def fill(self, group: int, keys: Hashes) -> None:
        offer = self._offer(group, keys)
        self.offer(offer)
        self.offered(offer)

    def prepare_match(self, keys: Hashes) -> Any:
        return self._request(keys)

    def match(self, prepared: Any) -> int | None:
        self.scheduler.on_new_request(prepared)
        return self.scheduler.get_num_new_matched_tokens(prepared, 0)[0]

    def forget(self, prepared: Any) -> None:
        self._finish(prepared)

    def prepare_store(self, keys: Hashes) -> Any:
        request = self._request(keys)
        self.scheduler.on_new_request(request)
        assert self.scheduler.get_num_new_matched_tokens(request, 0)[0] == 0
        blocks = tuple(list(range(1, len(keys) + 1)) for _ in range(self._groups))
        output = _output(
            new=[
                NewRequestData(
                    req_id=request.request_id,
                    prompt_token_ids=None,
                    mm_features=[],
                    sampling_params=None,
                    pooling_params=None,
                    block_ids=blocks,
                    num_computed_tokens=0,
                    lora_request=None,
                )
            ],
            scheduled={request.request_id: len(keys) * TOKENS_PER_BLOCK},
        )
        return SimpleNamespace(request=request, output=output, jobs=())

    def store(self, prepared: Any) -> int:
        jobs = self.scheduler.build_connector_meta(prepared.output).store_jobs
        prepared.jobs = list(jobs)
        return sum(len(job.src_spec.block_ids) for job in jobs.values())

    def stored(self, prepared: Any) -> None:
        self._complete(prepared.jobs)
        self._finish(prepared.request)

    def prepare_offer(self, keys: Hashes) -> Any:
        return self._offer(0, keys)

    def offer(self, prepared: Any) -> int:
        output = self.manager.prepare_store(prepared.keys, prepared.context)
        return len(output.keys_to_store)

    def offered(self, prepared: Any) -> None:
        self.manager.complete_store(prepared.keys, prepared.context)
        self.manager.on_request_finished(prepared.context)

    def prepare_decode(self, requests: Sequence[Hashes]) -> Any:
        names, computed = [], []
        for keys in requests:
            prepared = self.prepare_store(keys)
            self.store(prepared)
            self._complete(prepared.jobs)
            request = prepared.request
            request.append_output_token_ids([0, 0])
            request.num_computed_tokens = request.num_tokens - 1
            names.append(request.request_id)
            computed.append(request.num_computed_tokens)
        cached = CachedRequestData(
            req_ids=names,
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[None] * len(names),
            num_computed_tokens=computed,
            num_output_tokens=[2] * len(names),
        )
        return _output(cached=cached, scheduled=dict.fromkeys(names, 1))

    def decode(self, prepared: Any) -> int:
        return len(self.scheduler.build_connector_meta(prepared).store_jobs)

    def _offer(self, group: int, keys: Hashes) -> Any:
        context = ReqContext(req_id=str(next(self._names)))
        packed = [make_offload_key(key, group) for key in keys]
        for number, key in enumerate(packed):
            context.set_offload_key_position(key, (number + 1) * TOKENS_PER_BLOCK)
        self.manager.on_new_request(context)
        return SimpleNamespace(context=context, keys=packed)

    def _request(self, keys: Hashes) -> Any:
        request = Request(
            request_id=str(next(self._names)),
            prompt_token_ids=[0] * (len(keys) * TOKENS_PER_BLOCK),
            sampling_params=SamplingParams(max_tokens=8),
            pooling_params=None,
        )
        request.block_hashes = keys
        return request

    def _complete(self, jobs: Sequence[int]) -> None:
        done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(jobs, 1))
        self.scheduler.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=done))

    def _finish(self, request: Any) -> None:
        request.status = RequestStatus.FINISHED_ABORTED
        request.num_computed_tokens = 0
        self.scheduler.request_finished(request)
        self.scheduler.build_connector_meta(_output(finished={request.request_id}))


def _output(
    *,
    new: Sequence[Any] = (),
    cached: Any = None,
    scheduled: dict[str, int] | None = None,
    finished: set[str] | None = None,
) -> SchedulerOutput:
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = list(new)
    if cached is not None:
        output.scheduled_cached_reqs = cached
    output.num_scheduled_tokens = scheduled or {}
    output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
    output.finished_req_ids = finished or set()
    return output
