"""Which kernels compute: other algorithms, layouts, precisions and compilers."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "kernels"
_GPU = Need(fact="device", relation="is", value="cuda")
_CONVOLUTIONS = Need(fact="has_convolutions", relation="is", value=True)
_AMPERE = Need(fact="gpu_arch", relation="at least", value=8.0)
_VOLTA = Need(fact="gpu_arch", relation="at least", value=7.0)

CUDNN_BENCHMARK = Knob(
    name="cudnn-benchmark",
    family=FAMILY,
    summary="let cuDNN measure its convolution algorithms and take the fastest",
    safety="exact",
    answers={"no-tensor-cores": 0.3},
    reduces={"compute": 0.3},
    needs=(_GPU, _CONVOLUTIONS, Need(fact="is_deterministic", relation="is", value=False)),
    gates=("loss", "memory"),
    doc=(
        "Measures at the first call with each input shape: good for fixed shapes, slow for shapes that keep changing."
        " Algorithms sum in different orders, so runs can differ in the last digits; not for scripts that require"
        " determinism."
    ),
    source="torch.backends.cudnn documentation; PyTorch performance tuning guide",
)
CHANNELS_LAST = Knob(
    name="channels-last",
    family=FAMILY,
    summary="keep images and convolution weights in the layout that tensor cores read",
    safety="exact",
    reduces={"compute": 0.5},
    saves_memory=0.05,
    needs=(_GPU, _CONVOLUTIONS, _VOLTA),
    combines_with=("autocast",),
    doc="Avoids the transposes around each convolution, especially with autocast. Other layers convert back.",
    source="PyTorch tutorial, Channels last memory format",
)
TF32 = Knob(
    name="tf32",
    family=FAMILY,
    summary="run fp32 matrix multiplications on tensor cores, with inputs rounded to 10 mantissa bits",
    safety="rounding",
    answers={"no-tensor-cores": 1.0},
    needs=(_GPU, _AMPERE),
    doc=(
        "Inputs are rounded to TF32, sums stay in fp32. Ordinary training is hardly affected; ill-conditioned"
        " multiplications are."
    ),
    source="torch.set_float32_matmul_precision documentation",
)
AUTOCAST = Knob(
    name="autocast",
    family=FAMILY,
    summary="run matrix multiplications and convolutions in bf16, keep weights in fp32",
    safety="rounding",
    answers={"no-tensor-cores": 1.0},
    reduces={"compute": 0.7},
    saves_memory=0.45,
    needs=(_GPU, _AMPERE, Need(fact="is_autocast", relation="is not", value=True)),
    valid=ValidRange(choices=("bfloat16",)),
    combines_with=("channels-last", "compile", "ddp-compression"),
    doc=(
        "bf16 has the range of fp32 with 8 bits of precision, so no GradScaler. Activations take half the memory:"
        " ResNet-50 with channels-last, 44 % less at its peak."
    ),
    source="torch.amp documentation; measured on the ImageNet example with 4 H200",
)
COMPILE = Knob(
    name="compile",
    family=FAMILY,
    summary="compile the model: fused kernels and fewer launches",
    safety="rounding",
    answers={"small-kernels": 1.0, "host-bound": 1.0, "eager-mode": 1.0},
    reduces={"compute": 0.5},
    needs=(_GPU, _VOLTA, Need(fact="is_compiled", relation="is not", value=True)),
    valid=ValidRange(choices=("default", "reduce-overhead", "max-autotune-no-cudagraphs")),
    excludes=("ddp-static-graph",),
    gates=("loss", "memory"),
    doc=(
        "The first steps compile for minutes; inputs whose shapes keep changing trigger recompilation."
        " `reduce-overhead` records CUDA graphs, which need fixed addresses and more memory. Fused kernels round"
        " at other points."
    ),
    source="torch.compile documentation; pytorch/torchtitan: 5,762 -> 6,667 tokens/s per GPU on 8 H100",
)
FUSED_ATTENTION = Knob(
    name="fused-attention",
    family=FAMILY,
    summary="compute attention in one kernel that never writes the score matrix",
    safety="rounding",
    answers={"small-kernels": 0.5},
    reduces={"compute": 0.5},
    saves_memory=0.4,
    needs=(_GPU, _AMPERE, Need(fact="has_transformers", relation="is", value=True)),
    valid=ValidRange(choices=("sdpa", "flash_attention_2")),
    doc=(
        "For models of the transformers library, which choose their attention by name; attention that a script"
        " implements itself cannot be replaced from outside. `flash_attention_2` needs its package and half precision."
    ),
    source="FlashAttention, arXiv:2205.14135; transformers documentation, attention backends",
)
LIGER = Knob(
    name="liger-kernels",
    family=FAMILY,
    summary="use Liger's fused kernels for norms, rotary positions, activations and the loss",
    safety="rounding",
    answers={"small-kernels": 0.7},
    reduces={"compute": 0.3},
    saves_memory=0.4,
    needs=(
        _GPU,
        _AMPERE,
        Need(fact="has_transformers", relation="is", value=True),
        Need(fact="has_liger", relation="is", value=True),
    ),
    gates=("loss", "memory"),
    doc=(
        "For models of the transformers library of which the package liger_kernel has kernels. The loss is computed"
        " without all logits in memory, which saves most with large vocabularies."
    ),
    source="Liger Kernel, arXiv:2410.10989",
)
XFORMERS = Knob(
    name="xformers-attention",
    family=FAMILY,
    summary="compute attention with xformers' kernels",
    safety="rounding",
    reduces={"compute": 0.3},
    saves_memory=0.3,
    needs=(_GPU, _VOLTA, Need(fact="has_xformers", relation="is", value=True)),
    gates=("loss", "memory"),
    doc=(
        "Acts on `scaled_dot_product_attention` in half precision without a mask of the script's own. It helps most on"
        " cards for which torch's own call has no fused kernel; on Ampere and later torch's is usually as fast."
    ),
    source="xformers documentation, memory_efficient_attention",
)
KNOBS = (CUDNN_BENCHMARK, CHANNELS_LAST, TF32, AUTOCAST, COMPILE, FUSED_ATTENTION, LIGER, XFORMERS)


def changes(facts: JobFacts) -> Iterator[Change]:
    del facts  # their needs are enough
    yield setting(CHANNELS_LAST, patch="channels_last")
    yield setting(CUDNN_BENCHMARK, patch="cudnn_benchmark")
    yield setting(TF32, patch="tf32")
    yield setting(AUTOCAST, "bfloat16", patch="autocast", dtype="bfloat16")
    for mode in COMPILE.valid.choices:
        yield setting(COMPILE, mode, patch="compile", mode=mode)
    for implementation in FUSED_ATTENTION.valid.choices:
        yield setting(FUSED_ATTENTION, implementation, patch="fused_attention", implementation=implementation)
    yield setting(LIGER, patch="liger_kernels")
    yield setting(XFORMERS, patch="xformers_attention")
