"""Read encoders, and models of an encoder and a decoder: BERT and its kin, ModernBERT, ViT, T5, BART, Whisper.

An encoder and a decoder are planned for a sequence that both read. Whisper's encoder is counted as a tower: its input
always has the same length.
"""

from __future__ import annotations

import msgspec

from flatout.plan.models.config import ModelConfig
from flatout.plan.models.decoders import (
    assembled,
    assembled_alike,
    check_length,
    layer_kind,
    num_layers,
    of_kinds,
    read_heads,
)
from flatout.plan.models.parts import FeedForward, Heads, Mixing, attention, feed_forward
from flatout.plan.models.towers import square
from flatout.records.layers import LayerKind, Tower
from flatout.records.plan import Workload


def read_bert(config: ModelConfig) -> Workload:
    """Return BERT, RoBERTa and others of the same layers, with the head that `architectures` names."""
    heads = read_heads(config)
    hidden = heads.hidden
    network = FeedForward(feed_forward(hidden, config.size("intermediate_size"), is_gated=False, has_bias=True))
    rows = config.size("max_position_embeddings") + config.whole("type_vocab_size", default=0)
    embedding = rows * hidden + 2 * hidden
    return assembled_alike(
        config,
        heads,
        attention(heads, qkv_bias=True, out_bias=True),
        network,
        norms_per_layer=4 * hidden,
        is_gated=False,
        outside_parameters=embedding + _bert_head(config, hidden),
        is_causal=False,
    )


def read_distilbert(config: ModelConfig) -> Workload:
    """Return DistilBERT."""
    hidden, num = config.size("dim"), config.size("n_heads")
    heads = Heads(hidden, num, num, hidden // num)
    network = FeedForward(feed_forward(hidden, config.size("hidden_dim"), is_gated=False, has_bias=True))
    is_masked = _architecture(config).endswith("ForMaskedLM")
    head = hidden**2 + 3 * hidden + config.size("vocab_size") if is_masked else 0
    return assembled_alike(
        config,
        heads,
        attention(heads, qkv_bias=True, out_bias=True),
        network,
        norms_per_layer=4 * hidden,
        is_gated=False,
        outside_parameters=config.size("max_position_embeddings") * hidden + 2 * hidden + head,
        is_causal=False,
    )


def _architecture(config: ModelConfig) -> str:
    named = config.values.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _bert_head(config: ModelConfig, hidden: int) -> int:
    """Return the parameters after the layers; none if no architecture is named."""
    name = _architecture(config)
    pooler = hidden**2 + hidden
    vocab = config.size("vocab_size")
    # Tied tables share their bias, too.
    transform = hidden**2 + hidden + 2 * hidden + (vocab if config.is_on("tie_word_embeddings") else 2 * vocab)
    if name.endswith(("ForMaskedLM", "LMHeadModel", "ForCausalLM")):
        return transform
    if name.endswith("ForPreTraining"):
        return transform + pooler + 2 * hidden + 2
    if name.endswith("Model"):
        return pooler
    return 0


def read_modernbert(config: ModelConfig) -> Workload:
    """Return ModernBERT: a window in all but each third layer, a gated network, the head of masked tokens."""
    heads, layers = read_heads(config), num_layers(config)
    hidden = heads.hidden
    every = config.whole("global_attn_every_n_layers", default=3)
    types = config.texts("layer_types") or [
        "sliding_attention" if layer % every else "full_attention" for layer in range(layers)
    ]
    check_length(config, "layer_types", types, layers)
    bias = config.is_on("attention_bias")
    full = attention(heads, qkv_bias=bias, out_bias=bias)
    local = full._replace(kind="window", window=config.size("local_attention"))
    network = FeedForward(
        feed_forward(hidden, config.size("intermediate_size"), is_gated=True, has_bias=config.is_on("mlp_bias"))
    )
    norm = hidden * (2 if config.is_on("norm_bias") else 1)
    head = 0
    if _architecture(config).endswith("ForMaskedLM"):
        head = hidden**2 + (hidden if config.is_on("classifier_bias") else 0) + norm
        head += config.size("vocab_size") if config.is_on("decoder_bias") else 0
    return assembled(
        config,
        heads,
        [local if kind == "sliding_attention" else full for kind in types],
        [network] * layers,
        norms_per_layer=lambda layer: norm if layer == 0 else 2 * norm,
        outside_parameters=2 * norm + head,
        is_causal=False,
    )


def read_vit(config: ModelConfig) -> Workload:
    """Return a ViT with its classes; its sequence is that of the patches."""
    heads, layers = read_heads(config), num_layers(config)
    side, patch = square(config, "image_size"), square(config, "patch_size")
    patch_inputs = config.whole("num_channels", default=3) * patch**2
    labels = config.values.get("id2label")
    return Workload(
        name=str(config.values.get("_name_or_path") or config.path.parent.name or config.path.name),
        num_layers=layers,
        hidden=heads.hidden,
        num_heads=heads.num,
        num_kv_heads=heads.num,
        head_dim=heads.dim,
        ffn=config.size("intermediate_size"),
        is_gated=False,
        vocab=0,
        is_tied=True,
        has_bias=True,
        is_causal=False,
        max_positions=(side // patch) ** 2 + 1,
        patch_inputs=patch_inputs,
        num_classes=len(labels) if isinstance(labels, dict) else 1000,
        source=str(config.path),
    )


def _crossing(own: Mixing, cross: Mixing, cross_attended: int = 0) -> Mixing:
    """Return attention to a decoder's own tokens, and then to those of its encoder."""
    return own._replace(
        matrices=own.matrices + cross.matrices,
        cross_width=cross.score_width,
        cross_attended=cross_attended,
        kv_width=own.kv_width + cross.kv_width,
    )


def read_t5(config: ModelConfig) -> Workload:
    """Return T5, mT5 and UMT5: an encoder and a decoder, whose first layers have a table of relative positions."""
    hidden, num, dim = config.size("d_model"), config.size("num_heads"), config.size("d_kv")
    heads = Heads(hidden, num, num, dim)
    is_gated = str(config.value("feed_forward_proj")).startswith("gated")
    network = FeedForward(feed_forward(hidden, config.size("d_ff"), is_gated=is_gated))
    num_encoder = config.size("num_layers")
    num_decoder = config.whole("num_decoder_layers", default=num_encoder)
    own = attention(heads)
    table = config.size("relative_attention_num_buckets") * num
    num_tables = num_encoder + num_decoder if config.model_type == "umt5" else 2
    kinds = (
        msgspec.structs.replace(layer_kind(own, network, 2 * hidden, num_encoder), is_bidirectional=True),
        layer_kind(_crossing(own, own), network, 3 * hidden, num_decoder),
    )
    workload = of_kinds(config, heads, kinds, is_gated=is_gated, outside_parameters=2 * hidden + num_tables * table)
    return msgspec.structs.replace(workload, is_tied=True)  # transformers ties them whatever the config says


def read_bart(config: ModelConfig) -> Workload:
    """Return BART and mBART: an encoder and a decoder with learned positions."""
    hidden = config.size("d_model")
    num = config.size("encoder_attention_heads")
    heads = Heads(hidden, num, num, hidden // num)
    own = attention(heads, qkv_bias=True, out_bias=True)
    kinds = _two_stacks(config, hidden, own, own, 0)
    positions = 2 * (config.size("max_position_embeddings") + 2) * hidden
    norms = 4 * hidden if config.model_type == "bart" else 8 * hidden  # mBART has final norms
    # If the tables are not tied, the encoder and the decoder have one each, next to the shared one and the logits'.
    own_tables = 0 if config.is_on("tie_word_embeddings") else 2 * config.size("vocab_size") * hidden
    return of_kinds(config, heads, kinds, is_gated=False, outside_parameters=positions + norms + own_tables)


def read_whisper(config: ModelConfig) -> Workload:
    """Return Whisper: a decoder that attends to an encoder of fixed length, which is counted as a tower."""
    hidden = config.size("d_model")
    num = config.size("decoder_attention_heads")
    heads = Heads(hidden, num, num, hidden // num)
    biased = attention(heads, qkv_bias=True, out_bias=True)
    keys = msgspec.structs.replace(biased.matrices[1], has_bias=False)
    own = biased._replace(matrices=(biased.matrices[0], keys, *biased.matrices[2:]))
    frames = config.size("max_source_positions")
    encoder, decoder = _two_stacks(config, hidden, own, own, frames)
    convolutions = 3 * config.size("num_mel_bins") * hidden + 3 * hidden**2
    tower = Tower(
        name="audio",
        parameters=encoder.num_layers * encoder.parameters + convolutions + 2 * hidden + frames * hidden + 2 * hidden,
        multiply_adds=encoder.num_layers * frames * (encoder.active_weights + encoder.score_width * frames)
        + 2 * frames * convolutions,
        kept_elements=encoder.num_layers * frames * hidden,
    )
    workload = of_kinds(
        config,
        heads,
        (decoder,),
        is_gated=False,
        outside_parameters=config.size("max_target_positions") * hidden + 2 * hidden,
    )
    return msgspec.structs.replace(workload, towers=(tower,))


def _two_stacks(
    config: ModelConfig, hidden: int, own: Mixing, cross: Mixing, cross_attended: int
) -> tuple[LayerKind, LayerKind]:
    """Return the layers of an encoder and of a decoder with biases everywhere."""
    into = FeedForward(feed_forward(hidden, config.size("encoder_ffn_dim"), is_gated=False, has_bias=True))
    out_of = FeedForward(feed_forward(hidden, config.size("decoder_ffn_dim"), is_gated=False, has_bias=True))
    encoder = layer_kind(own, into, 4 * hidden, config.size("encoder_layers"))
    decoder = layer_kind(_crossing(own, cross, cross_attended), out_of, 6 * hidden, config.size("decoder_layers"))
    return msgspec.structs.replace(encoder, is_bidirectional=True), decoder


def read_mllama_text(config: ModelConfig) -> Workload:
    """Return Llama 3.2 Vision's text model, some of whose layers attend to the image instead of the text."""
    heads, layers = read_heads(config), num_layers(config)
    hidden = heads.hidden
    own = attention(heads)
    # An image has up to 4 tiles of 1,601 patches.
    crossing = own._replace(
        score_width=0, cross_width=own.score_width, cross_attended=4 * 1601, other_parameters=2 * heads.dim + 2
    )
    default = [3, 8, 13, 18, 23, 28, 33, 38]
    cross_layers = config.value("cross_attention_layers") or default
    network = FeedForward(feed_forward(hidden, config.size("intermediate_size"), is_gated=True))
    return assembled(
        config,
        heads,
        [crossing if layer in cross_layers else own for layer in range(layers)],
        [network] * layers,
        norms_per_layer=2 * hidden,
        outside_parameters=hidden + 8 * hidden,  # the table of the embedding has 8 more rows
    )
