"""Groups, pages and hashes, translated from vLLM's own objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import KVCacheBlock, make_block_hash_with_group_id
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

from kvoffload_client.jobs import JobKey
from kvoffload_client.vllm.config import ConnectorConfigError
from kvoffload_client.vllm.identity import engine_shape, initial_hash
from kvoffload_client.vllm.metadata import WorkerReport
from kvoffload_client.vllm.regions import kv_memory, layer_memory
from kvoffload_client.vllm.scheduler import _encoded

BLOCKS = 6
FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32)
WINDOW = SlidingWindowSpec(
    block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=64
)
PAGE = 16 * 2 * 8 * 2 * 4  # tokens, heads, head size, K and V, bytes of a float32


def config(*groups: KVCacheGroupSpec) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=list(groups))


def engine(**parallel: int) -> Any:
    sizes: dict[str, int] = {"tensor_parallel_size": 1, "decode_context_parallel_size": 1}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**sizes, **parallel}),
        cache_config=SimpleNamespace(
            block_size=16,
            prefix_match_unit=None,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256",
        ),
        kv_transfer_config=object(),
    )


def test_a_page_of_this_test_is_what_vllm_says_it_is() -> None:
    assert FULL.page_size_bytes == PAGE


def test_a_group_of_full_attention_layers_has_the_bytes_of_all_its_layers() -> None:
    shape = engine_shape(engine(), config(KVCacheGroupSpec(["a", "b", "c"], FULL)))
    (group,) = shape.groups
    assert (group.kind, group.tokens_per_block, group.block_bytes) == ("full", 16, 3 * PAGE)
    assert (shape.tokens_per_hash, shape.world_size) == (16, 1)


def test_a_sliding_window_keeps_its_window() -> None:
    (group,) = engine_shape(engine(), config(KVCacheGroupSpec(["a"], WINDOW))).groups
    assert (group.kind, group.window) == ("sliding_window", 64)


def test_pipeline_parallelism_is_refused_with_one_line() -> None:
    with pytest.raises(ConnectorConfigError, match="pipeline_parallel_size=2"):
        engine_shape(engine(pipeline_parallel_size=2), config(KVCacheGroupSpec(["a"], FULL)))


def test_layers_one_after_another_are_pages_side_by_side() -> None:
    tensor = torch.zeros(BLOCKS, 2, 16, 16, dtype=torch.float32)
    (layers,) = kv_memory(config(KVCacheGroupSpec(["a"], FULL)), {"a": tensor})
    assert layers[0].memory == tensor.data_ptr()
    assert (layers[0].block_stride, layers[0].block_bytes) == (PAGE, PAGE)


def test_all_layers_of_a_block_together_are_pages_with_a_stride() -> None:
    packed = torch.zeros(BLOCKS, 3, 2, 16, 16, dtype=torch.float32)
    tensors = {name: packed[:, place] for place, name in enumerate("abc")}
    (layers,) = kv_memory(config(KVCacheGroupSpec(list("abc"), FULL)), tensors)
    assert [layer.memory for layer in layers] == [
        packed.data_ptr() + place * PAGE for place in range(3)
    ]
    assert {(layer.block_stride, layer.block_bytes) for layer in layers} == {(3 * PAGE, PAGE)}


def test_the_order_of_dimensions_inside_a_page_does_not_matter() -> None:
    tensor = torch.zeros(BLOCKS, 16, 2, 16, dtype=torch.float32).permute(0, 2, 1, 3)
    layer = layer_memory(tensor, num_blocks=BLOCKS, page_bytes=PAGE, layer="a")
    assert (layer.block_stride, layer.block_bytes) == (PAGE, PAGE)


def test_a_kernel_with_smaller_blocks_is_seen_in_the_blocks_of_the_engine() -> None:
    tensor = torch.zeros(BLOCKS * 4, 2, 4, 16, dtype=torch.float32)
    layer = layer_memory(tensor, num_blocks=BLOCKS, page_bytes=PAGE, layer="a")
    assert (layer.num_blocks, layer.block_stride) == (BLOCKS, PAGE)


def test_keys_and_values_in_two_halves_of_a_tensor_are_refused_with_one_line() -> None:
    halves = torch.zeros(2, BLOCKS, 2, 16, 8, dtype=torch.float32).transpose(0, 1)
    with pytest.raises(ConnectorConfigError, match=f"is not one page of {PAGE} bytes") as caught:
        layer_memory(halves, num_blocks=BLOCKS, page_bytes=PAGE, layer="a")
    assert "\n" not in str(caught.value)


def test_the_initial_hash_is_the_one_that_the_engine_will_draw() -> None:
    from vllm.utils.hashing import get_hash_fn_by_name

    function = get_hash_fn_by_name("sha256")
    before = initial_hash(engine())
    kv_cache_utils.init_none_hash(function)
    assert before == initial_hash(engine()) == bytes(kv_cache_utils.NONE_HASH)


def test_a_block_is_told_as_hashed_fresh_or_null() -> None:
    fresh, hashed, null = KVCacheBlock(3), KVCacheBlock(4), KVCacheBlock(0)
    block_hash = kv_cache_utils.BlockHash(b"h" * 32)
    hashed.set_block_hash(make_block_hash_with_group_id(block_hash, 0), 16)
    null.is_null = True
    assert [_encoded(block) for block in (fresh, hashed, null)] == [3, -4, 0]


def test_a_job_counts_for_each_rank_and_fails_if_it_failed_on_one() -> None:
    key = JobKey(boot_id=1, session=1, job=1)
    well = WorkerReport(ended={key: 1})
    badly = WorkerReport(ended={key: 1}, failed=frozenset({key}))
    both = well.aggregate(badly)
    assert (both.ended, both.failed) == ({key: 2}, frozenset({key}))
