"""What an engine is, to the agent: its groups, and the identity under which it shares chunks.

Everything that makes the bytes of a block differ belongs into the identity: two engines with one
fingerprint in one namespace read each other's chunks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvoffload_api.wire.messages import Group
from kvoffload_client.layout import EngineLayout
from kvoffload_client.vllm.config import ConnectorConfigError

# The header of a checkpoint of a thousand tensors is about 100 kB; the rest samples its numbers.
_SAMPLE_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """Geometry that both roles of the connector derive from the same configuration.

    Attributes:
        groups: one per KV cache group, in the engine's order.
        tokens_per_hash: tokens that one of the request's block hashes covers.
        world_size: workers that each hold a shard of every block.
    """

    groups: tuple[Group, ...]
    tokens_per_hash: int
    world_size: int


def engine_shape(vllm_config: Any, kv_cache_config: Any) -> EngineShape:
    """Translate vLLM's configuration (``VllmConfig``, ``KVCacheConfig``).

    Raises:
        ConnectorConfigError: the engine is of a kind that is not offloaded.
    """
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    parallel = vllm_config.parallel_config
    _refuse_parallelism(parallel)
    if len(kv_cache_config.prefix_cacheable_group_ids) != len(kv_cache_config.kv_cache_groups):
        raise ConnectorConfigError(
            "this model has KV cache groups without block hashes, which a load could not restore: "
            "run it without KVOffloadConnector"
        )
    _, tokens_per_hash = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    return EngineShape(
        groups=tuple(_group(group) for group in kv_cache_config.kv_cache_groups),
        tokens_per_hash=int(tokens_per_hash),
        world_size=int(parallel.tensor_parallel_size),
    )


def engine_layout(
    vllm_config: Any,
    kv_cache_config: Any,
    *,
    shape: EngineShape,
    blocks_per_chunk: int,
    none_hash: bytes,
) -> EngineLayout:
    """Return what the engine registers with the agent.

    ``none_hash`` is the parent of every first block's hash: engines that differ in it never agree
    on a hash, and must not share a partition's budget either.
    """
    import vllm

    model, cache = vllm_config.model_config, vllm_config.cache_config
    auto = cache.cache_dtype == "auto"
    identity = {
        # Attention kernels pack pages as they like, and that may change with the engine.
        "engine": f"vllm {vllm.__version__}",
        "model": str(model.model),
        "revision": str(model.revision or ""),
        "weights": weights_digest(str(model.model)),
        "model_dtype": str(model.dtype),
        "quantization": str(model.quantization or ""),
        "kv_dtype": str(model.dtype if auto else cache.cache_dtype),
        "kv_layout": str(kv_cache_config.kv_cache_layout or ""),
        "layers": [list(group.layer_names) for group in kv_cache_config.kv_cache_groups],
        "hash_algorithm": str(cache.prefix_caching_hash_algo),
        "none_hash": none_hash,
    }
    return EngineLayout(
        identity=identity,
        groups=shape.groups,
        world_size=shape.world_size,
        tokens_per_hash=shape.tokens_per_hash,
        blocks_per_chunk=blocks_per_chunk,
        block_hash_bytes=len(none_hash),
        enable_prefix_caching=bool(cache.enable_prefix_caching),
        prefix_cache_retention_interval=cache.prefix_cache_retention_interval,
    )


def initial_hash(vllm_config: Any) -> bytes | None:
    """Return the engine's NONE_HASH, or None while it is not known yet.

    The engine draws it after it has built its scheduler, from ``PYTHONHASHSEED`` or a fixed seed;
    only the hash functions that are not cryptographic have a random one, which must be waited for.
    """
    from vllm.v1.core import kv_cache_utils

    known = getattr(kv_cache_utils, "NONE_HASH", None)
    if known is not None:
        return bytes(known)
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    if not algorithm.startswith("sha256"):
        return None
    from vllm.utils.hashing import get_hash_fn_by_name

    function = get_hash_fn_by_name(algorithm)
    return bytes(function(kv_cache_utils.resolve_none_hash_seed(function)))


def weights_digest(model: str) -> str:
    """Return a digest of a local model folder, or ``""`` for a model named by its repository.

    A folder's path says nothing of what is in it, and other weights make other keys and values.
    Reading gigabytes at start-up is out of the question, so this takes the name, the size, the
    beginning (a safetensors file's header is there) and the end of each file.
    """
    directory = Path(model)
    if not directory.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in _identifying_files(directory):
        size = path.stat().st_size
        digest.update(json.dumps([path.name, size]).encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _identifying_files(directory: Path) -> Iterable[Path]:
    wanted = (".json", ".safetensors", ".bin", ".pt", ".gguf")
    return sorted(path for path in directory.iterdir() if path.suffix in wanted and path.is_file())


def _refuse_parallelism(parallel: Any) -> None:
    """Refuse what the agent does not keep apart yet (DESIGN section 7)."""
    for name in (
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "decode_context_parallel_size",
        "nnodes",
    ):
        size = getattr(parallel, name, 1)
        if size > 1:
            raise ConnectorConfigError(
                f"KVOffloadConnector does not support {name}={size}; set it to 1 or run without it"
            )


def _group(group: Any) -> Group:
    """Translate one ``KVCacheGroupSpec``."""
    from vllm.v1 import kv_cache_interface as interface

    layers = layer_specs(group)
    spec = next(iter(layers.values()))
    kind, window, align = "full", 0, False
    if isinstance(spec, interface.SlidingWindowSpec):
        kind, window = "sliding_window", int(spec.sliding_window)
    elif isinstance(spec, interface.ChunkedLocalAttentionSpec):
        kind, window = "chunked_local", int(spec.attention_chunk_size)
    elif isinstance(spec, interface.MambaSpec):
        kind, align = "mamba", spec.mamba_cache_mode == "align"
    elif not isinstance(spec, interface.FullAttentionSpec):
        raise ConnectorConfigError(
            f"KVOffloadConnector does not know the KV cache kind {type(spec).__name__}; "
            "run this model without it"
        )
    return Group(
        kind=kind,
        tokens_per_block=int(spec.block_size),
        block_bytes=sum(int(layer.page_size_bytes) for layer in layers.values()),
        window=window,
        eagle=bool(group.is_eagle_group),
        mamba_align=align,
    )


def layer_specs(group: Any) -> dict[str, Any]:
    """Return the ``KVCacheSpec`` of each layer of a ``KVCacheGroupSpec``, in its layer order."""
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    if specs is None:
        return dict.fromkeys(group.layer_names, group.kv_cache_spec)
    return {name: specs[name] for name in group.layer_names}
