"""A Llama with random weights and a tokenizer of bytes, as a folder that `transformers serve` loads.

It is written without torch and transformers, whose import takes longer than all else.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

_END, _BEGIN = 257, 256


def write_tiny_llama(folder: Path, *, hidden: int, layers: int, heads: int) -> Path:
    """Write the model. Its weights are large enough that answers do not repeat one token."""
    from safetensors.numpy import save_file

    folder.mkdir()
    key_value_heads = max(heads // 2, 1)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 258,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "max_position_embeddings": 1024,
        "bos_token_id": _BEGIN,
        "eos_token_id": _END,
        "pad_token_id": _END,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        _weights(hidden, layers, hidden // heads * key_value_heads), folder / "model.safetensors", {"format": "pt"}
    )
    _write_tokenizer(folder)
    return folder


def _weights(hidden: int, layers: int, key_value: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    draw = np.random.default_rng(0)

    def random(rows: int, columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return (draw.standard_normal((rows, columns)) * 1.6 / hidden**0.5).astype(np.float32)

    ones = np.ones(hidden, dtype=np.float32)
    weights = {
        "model.embed_tokens.weight": random(258, hidden),
        "lm_head.weight": random(258, hidden),
        "model.norm.weight": ones,
    }
    for layer in range(layers):
        place = f"model.layers.{layer}"
        weights |= {
            f"{place}.self_attn.q_proj.weight": random(hidden, hidden),
            f"{place}.self_attn.k_proj.weight": random(key_value, hidden),
            f"{place}.self_attn.v_proj.weight": random(key_value, hidden),
            f"{place}.self_attn.o_proj.weight": random(hidden, hidden),
            f"{place}.mlp.gate_proj.weight": random(2 * hidden, hidden),
            f"{place}.mlp.up_proj.weight": random(2 * hidden, hidden),
            f"{place}.mlp.down_proj.weight": random(hidden, 2 * hidden),
            f"{place}.input_layernorm.weight": ones,
            f"{place}.post_attention_layernorm.weight": ones,
        }
    return weights


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)} | {"<s>": _BEGIN, "</s>": _END}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<s>"))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
