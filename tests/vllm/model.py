"""Writes a small Llama whose output depends on every block of its KV cache.

Dummy weights (all of one tiny scale) give almost flat logits, under which a swapped or stale block
goes unnoticed. These are random, drawn once from a seed, and scaled so that attention is peaked
and logits are far apart.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LAYERS = 4
HIDDEN = 256
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
INTERMEDIATE = 512
VOCABULARY = 1024
MAX_TOKENS = 2048
# Queries and keys this much above unit variance make attention peaked: a token's output then
# depends on a few places of the prompt, and on which ones.
ATTENTION_GAIN = 2.5
SEED = 20


def write_model(directory: Path) -> Path:
    """Write configuration and weights (float32, about 12 MB) into ``directory``; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(directory / "model.safetensors", weights())
    return directory


def write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """Write the format's u64 header length, JSON header and tensors; the tests need no library."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def weights() -> dict[str, NDArray[np.float32]]:
    """Return all tensors by their name in a Llama checkpoint; rows are outputs."""
    generator = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        drawn = generator.standard_normal((rows, columns), dtype=np.float32)
        return drawn * np.float32(gain / np.sqrt(columns))

    ones = np.ones(HIDDEN, dtype=np.float32)
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, gain=np.sqrt(HIDDEN)),
        "model.norm.weight": ones.copy(),
        # Logits with a standard deviation of 4: the best token is well ahead of the next.
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, gain=4.0),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": ones.copy(),
            f"{prefix}.post_attention_layernorm.weight": ones.copy(),
            f"{prefix}.self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN, ATTENTION_GAIN),
            f"{prefix}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN, 2.0),
            f"{prefix}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN, 2.0),
            f"{prefix}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return tensors
