"""Writes a small Gemma 3: layers with a sliding window beside layers of full attention.

The engine keeps two KV cache groups of it. As of the Llama in ``model``, its weights are random and
scaled so that a token depends on which keys and values it attends to.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.vllm.model import MAX_TOKENS, VOCABULARY, write_safetensors

LAYER_TYPES = ("sliding_attention", "full_attention") * 2
WINDOW = 128
HIDDEN = 256
HEADS = 4
KV_HEADS = 2
HEAD_DIM = HIDDEN // HEADS
INTERMEDIATE = 512
# A Gemma norm scales by 1 + weight: queries and keys get 2.5 times unit variance.
PEAKED = 1.5
SEED = 30


def write_gemma(directory: Path) -> Path:
    """Write configuration and weights (float32, about 12 MB) into ``directory``; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": len(LAYER_TYPES),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "query_pre_attn_scalar": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS,
        "layer_types": list(LAYER_TYPES),
        "sliding_window": WINDOW,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    write_safetensors(directory / "model.safetensors", weights())
    return directory


def weights() -> dict[str, NDArray[np.float32]]:
    """Return all tensors by their name in a Gemma 3 checkpoint; rows are outputs."""
    generator = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        drawn = generator.standard_normal((rows, columns), dtype=np.float32)
        return drawn * np.float32(gain / np.sqrt(columns))

    def norm(size: int, weight: float = 0.0) -> NDArray[np.float32]:
        return np.full(size, weight, dtype=np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "model.norm.weight": norm(HIDDEN),
        # Logits with a standard deviation of 4: the best token is well ahead of the next.
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, gain=4.0),
    }
    for layer in range(len(LAYER_TYPES)):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": norm(HIDDEN),
            # What attention found counts twice as much as what was there.
            f"{prefix}.post_attention_layernorm.weight": norm(HIDDEN, 1.0),
            f"{prefix}.pre_feedforward_layernorm.weight": norm(HIDDEN),
            f"{prefix}.post_feedforward_layernorm.weight": norm(HIDDEN),
            f"{prefix}.self_attn.q_norm.weight": norm(HEAD_DIM, PEAKED),
            f"{prefix}.self_attn.k_norm.weight": norm(HEAD_DIM, PEAKED),
            f"{prefix}.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    return tensors
