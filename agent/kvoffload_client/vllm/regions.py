"""Where the bytes of a block are in a worker's KV cache.

A block of a group is one page per layer. Engines lay pages out in several ways (layer by layer, or
all layers of a block together); here each is seen as an address, a stride from block to block and
a length, so that copies need not know the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvoffload_client.layout import KVLayer, KVMemory
from kvoffload_client.vllm.config import ConnectorConfigError
from kvoffload_client.vllm.identity import layer_specs


def kv_memory(kv_cache_config: Any, kv_caches: Mapping[str, Any]) -> KVMemory:
    """Return the memory of each layer of each group.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig`` of this worker.
        kv_caches: the tensors as the engine hands them to ``register_kv_caches``, by layer.

    Raises:
        ConnectorConfigError: a layer's page is not one run of bytes.
    """
    return [
        [
            layer_memory(
                kv_caches[name],
                num_blocks=int(kv_cache_config.num_blocks),
                page_bytes=int(spec.page_size_bytes),
                layer=name,
            )
            for name, spec in layer_specs(group).items()
        ]
        for group in kv_cache_config.kv_cache_groups
    ]


def layer_memory(cache: Any, *, num_blocks: int, page_bytes: int, layer: str) -> KVLayer:
    """Return where one layer's pages are.

    The tensor's first dimension counts the engine's blocks, or the smaller blocks of an attention
    kernel that follow each other inside them. The order of the other dimensions does not matter,
    as long as their bytes lie within one page.

    Raises:
        ConnectorConfigError: they do not.
    """
    if isinstance(cache, list | tuple):  # state caches are several tensors over one allocation
        cache = min(cache, key=lambda tensor: int(tensor.data_ptr()))
    kernel_blocks = int(cache.shape[0])
    width = int(cache.element_size())
    strides = [int(step) * width for step in cache.stride()]
    per_block = kernel_blocks // num_blocks
    sizes = [per_block, *(int(size) for size in cache.shape[1:])]
    span = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True)) + width
    stride = strides[0] * per_block
    if kernel_blocks % num_blocks or span > page_bytes or stride < page_bytes:
        raise ConnectorConfigError(
            f"the KV cache of {layer} has shape {tuple(cache.shape)} and strides "
            f"{tuple(cache.stride())}: a block of it is not one page of {page_bytes} bytes, which "
            "is what KVOffloadConnector copies; choose another attention backend"
        )
    return KVLayer(
        memory=int(cache.data_ptr()),
        num_blocks=num_blocks,
        block_stride=stride,
        block_bytes=page_bytes,
    )
