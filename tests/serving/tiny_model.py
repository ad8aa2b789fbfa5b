"""A Llama with random weights and a tokenizer of characters, as a folder that `transformers serve` loads.

It is written without torch and transformers, whose import takes longer than all else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

import numpy as np
from numpy.typing import NDArray

_END, _BEGIN = 257, 256
Weights = dict[str, NDArray[np.floating]]


def write_tiny_llama(folder: Path, *, hidden: int, layers: int, heads: int, dtype: str = "float32") -> Path:
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
        "torch_dtype": dtype,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = _weights(hidden, layers, hidden // heads * key_value_heads, np.dtype(dtype))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _write_tokenizer(folder)
    return folder


def _weights(hidden: int, layers: int, key_value: int, dtype: np.dtype[np.floating]) -> Weights:
    """Return the weights; those of a layer are drawn by its own seed, so that threads share the work."""
    weights: Weights = {
        "model.embed_tokens.weight": _random(np.random.default_rng(0), 258, hidden, dtype),
        "lm_head.weight": _random(np.random.default_rng(1), 258, hidden, dtype),
        "model.norm.weight": np.ones(hidden, dtype=dtype),
    }
    with ThreadPoolExecutor() as threads:
        for of_layer in threads.map(lambda layer: _of_layer(layer, hidden, key_value, dtype), range(layers)):
            weights |= of_layer
    return weights


def _of_layer(layer: int, hidden: int, key_value: int, dtype: np.dtype[np.floating]) -> Weights:
    draw = np.random.default_rng([2, layer])
    place = f"model.layers.{layer}"
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (key_value, hidden),
        "self_attn.v_proj": (key_value, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (2 * hidden, hidden),
        "mlp.up_proj": (2 * hidden, hidden),
        "mlp.down_proj": (hidden, 2 * hidden),
    }
    ones = np.ones(hidden, dtype=dtype)
    norms = {f"{place}.input_layernorm.weight": ones, f"{place}.post_attention_layernorm.weight": ones}
    return norms | {f"{place}.{name}.weight": _random(draw, *shape, dtype) for name, shape in shapes.items()}


def _random(draw: np.random.Generator, rows: int, columns: int, dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
    values = draw.standard_normal((rows, columns), dtype=np.float32)
    values *= np.float32(1.6 / columns**0.5)
    return values.astype(dtype)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {piece: number for number, piece in enumerate(islice(_pieces(), _BEGIN))}
    characters = Tokenizer(models.BPE(vocab=vocabulary | {"<s>": _BEGIN, "</s>": _END}, merges=[], unk_token="<s>"))
    characters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    characters.decoder = decoders.ByteLevel()
    characters.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _pieces() -> Iterator[str]:
    """Yield the printable characters and then pairs of letters, which only answers have.

    Each token is text of its own: of the byte tokens of a random answer half would begin or continue a character that
    never ends, and a server would hold them back until others complete it.
    """
    yield "\u0120"  # a space, as byte-level tokenizers write it
    yield from (chr(code) for code in range(33, 127))
    yield from (first + second for first, second in product(ascii_lowercase, repeat=2))
