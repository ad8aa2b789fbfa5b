"""The model types that can be read from a `config.json`, and which reader reads each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flatout.plan.models import blocks, encoders, hybrids, special
from flatout.plan.models.config import ModelConfig
from flatout.plan.models.decoders import read_decoder
from flatout.plan.models.multimodal import MULTIMODAL, read_multimodal
from flatout.plan.models.towers import TOWER_TYPES
from flatout.plan.models.traits import TRAITS
from flatout.records.plan import Workload

READERS: dict[str, Callable[[ModelConfig], Workload]] = {
    **dict.fromkeys(TRAITS, read_decoder),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "sarvam_mla"), special.read_latent),
    "llama4_text": special.read_llama4,
    "dbrx": special.read_dbrx,
    "opt": special.read_opt,
    "mpt": special.read_mpt,
    "gpt_neo": special.read_gpt_neo,
    "grok-1": special.read_grok,
    "arctic": special.read_arctic,
    "kimi_linear": special.read_kimi_linear,
    **dict.fromkeys(("mamba", "falcon_mamba"), hybrids.read_mamba),
    "mamba2": hybrids.read_mamba2,
    "jamba": hybrids.read_jamba,
    "bamba": hybrids.read_bamba,
    "granitemoehybrid": hybrids.read_granite_hybrid,
    "falcon_h1": hybrids.read_falcon_h1,
    "nemotron_h": blocks.read_nemotron_h,
    "zamba2": blocks.read_zamba2,
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), hybrids.read_qwen3_next),
    "olmo_hybrid": hybrids.read_olmo_hybrid,
    "minimax": hybrids.read_minimax,
    "recurrent_gemma": hybrids.read_recurrent_gemma,
    "rwkv": hybrids.read_rwkv,
    **dict.fromkeys(("lfm2", "lfm2_moe"), hybrids.read_lfm2),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), encoders.read_bert),
    "distilbert": encoders.read_distilbert,
    "modernbert": encoders.read_modernbert,
    "vit": encoders.read_vit,
    **dict.fromkeys(("t5", "mt5", "umt5"), encoders.read_t5),
    **dict.fromkeys(("bart", "mbart"), encoders.read_bart),
    "whisper": encoders.read_whisper,
    "mllama_text_model": encoders.read_mllama_text,
}
READERS.update({name: partial(read_multimodal, parts=parts, readers=READERS) for name, parts in MULTIMODAL.items()})
# Types whose code is with the model and not in transformers: their configs say everything.
ONLY_ON_THE_HUB = ("grok-1", "arctic", "internlm2", "baichuan", "deepseek")
# Types of configs that have defaults in `catalog/model_configs.json`: the readers' own, and those inside them.
CONFIG_TYPES = (
    *(name for name in READERS if name not in ONLY_ON_THE_HUB),
    *TOWER_TYPES,
    "idefics2_perceiver",
)
# Names of types under which configs of the same form are published.
RENAMED = {"kimi_k2": "deepseek_v3", "RefinedWeb": "falcon", "RefinedWebModel": "falcon"}
# Types that are parts of others, and have no configs of models.
PARTS = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "mllama_text_model")
SUPPORTED = tuple(name for name in READERS if name not in PARTS)
