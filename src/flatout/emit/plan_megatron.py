"""Write a launch script for Megatron-LM's `pretrain_gpt.py`. Names: main of 2026-08-22 (core 0.20),
`megatron/training/arguments.py`.

It uses mock data, to measure the layout. Arguments appended to it override its own: the last one counts.
"""

from __future__ import annotations

import shlex

from flatout.emit.plan_heading import script, torchrun_words
from flatout.records.plan import Layout, Workload, counts_ends, has_own_split, layers_of_chunks
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "Megatron-LM core 0.20 (main of 2026-08-22)"


def emit(job: PlannedJob) -> tuple[Emitted, ...]:
    notes = unexpressed(job)
    groups = [
        " ".join([*torchrun_words(job), '"${MEGATRON:-.}/pretrain_gpt.py"']),
        *(" ".join(map(shlex.quote, words)) for words in (_parallel(job), _batch(job), _model(job.workload), _run())),
    ]
    is_fsdp = job.layout.zero >= 2
    # Before Blackwell, overlapping TP and CP requires kernels to run in launch order; FSDP forbids that setting.
    needs_order = not is_fsdp and job.layout.tp * job.layout.cp > 1
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if needs_order else {}
    text = script(job, TARGET, notes, environment, groups)
    return (Emitted(path="megatron_plan.sh", text=text, notes=notes),)


def recomputed_modules(workload: Workload) -> tuple[str, ...]:
    """Return the modules that a plan with selective recomputation counts, by Megatron-Core's names."""
    modules = {"layernorm": True, "moe_act": workload.num_experts > 0, "mla_up_proj": workload.kv_rank > 0}
    return tuple(name for name, applies in modules.items() if applies)


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """Return a note for each part of the job that Megatron-LM has no argument for."""
    workload = job.workload
    is_language_model = workload.is_causal and not workload.patch_inputs
    mixings = sorted({kind.mixing for kind in workload.layers} - {"attention"})
    special = [
        *(f"layers with {mixing}" for mixing in mixings),
        *(f"a {tower.name} tower" for tower in workload.towers),
    ]
    notes = {
        f"{workload.name} is not a causal language model: pretrain_gpt.py trains a GPT of the same size": (
            not is_language_model
        ),
        f"{workload.name} has {', '.join(special)}: pretrain_gpt.py trains a GPT of the same widths": bool(special),
    }
    return tuple(note for note, applies in notes.items() if applies)


def _parallel(job: PlannedJob) -> list[str]:
    layout = job.layout
    words = [f"--tensor-model-parallel-size={layout.tp}", f"--pipeline-model-parallel-size={layout.pp}"]
    if layout.sequence_parallel:
        words.append("--sequence-parallel")
    if has_own_split(job.workload.num_layers, layout.pp, layout.vpp):
        words.append(f"--pipeline-model-parallel-layout={pipeline_layout(job.workload, layout)}")
    elif layout.vpp > 1:
        words.append(f"--num-virtual-stages-per-pipeline-rank={layout.vpp}")
        if counts_ends(job.workload.num_layers, layout.pp, layout.vpp):
            words += ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    elif job.workload.num_layers % layout.pp:
        words.append(f"--decoder-last-pipeline-num-layers={_last_stage(job)}")
    if layout.cp > 1:
        words += [f"--context-parallel-size={layout.cp}", "--cp-comm-type=p2p"]
    if job.workload.num_experts:
        words += [f"--expert-model-parallel-size={layout.ep}", f"--expert-tensor-parallel-size={layout.etp}"]
    return [*words, *_sharding(layout), *_recompute(job)]


def pipeline_layout(workload: Workload, layout: Layout) -> str:
    """Return the layers of each chunk as Megatron-Core reads them: E embedding, t layer, L loss, | between chunks."""
    first, second, *_, last = layers_of_chunks(workload.num_layers, layout.pp, layout.vpp)
    num_between = layout.pp * layout.vpp - 2
    return f"E{'t' * first}|({'t' * second}|)*{num_between}{'t' * last}L"


def _recompute(job: PlannedJob) -> list[str]:
    """Return the arguments for what the backward pass computes again."""
    if job.layout.recompute == "full":
        return ["--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1"]
    if job.layout.recompute == "selective":
        return ["--recompute-granularity=selective", "--recompute-modules", *recomputed_modules(job.workload)]
    return []


_OVERLAP = ("--overlap-grad-reduce", "--overlap-param-gather")
_ZERO: dict[int, tuple[str, ...]] = {
    0: ("--overlap-grad-reduce",),
    1: ("--use-distributed-optimizer", *_OVERLAP),
    **{
        zero: (
            "--use-distributed-optimizer",
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy={strategy}",
            *_OVERLAP,
            "--ckpt-format=fsdp_dtensor",
        )
        for zero, strategy in ((2, "optim_grads"), (3, "optim_grads_params"))
    },
}


def _sharding(layout: Layout) -> list[str]:
    """Return the arguments for sharding over the data-parallel ranks, and for offloading."""
    # Only the distributed optimizer is offloaded; a single replica has one with a single shard.
    zero = max(layout.zero, 1) if layout.offload else layout.zero
    words = list(_ZERO[zero])
    replicas = layout.dp * layout.cp
    if layout.zero and 0 < layout.shard < replicas:
        words.append(f"--num-distributed-optimizer-instances={replicas // layout.shard}")
    if layout.offload:
        words += ["--optimizer-cpu-offload", "--optimizer-offload-fraction=1.0", "--use-precision-aware-optimizer"]
    return words


def _last_stage(job: PlannedJob) -> int:
    """Return the number of layers in the last stage, if all other stages have the same number, rounded up."""
    per_stage = -(-job.workload.num_layers // job.layout.pp)
    return job.workload.num_layers - per_stage * (job.layout.pp - 1)


def _batch(job: PlannedJob) -> list[str]:
    precision = {
        "bf16": ["--bf16"],
        "fp16": ["--fp16"],
        "fp8": ["--bf16", "--fp8-format=hybrid"],
        "fp4": ["--bf16", "--fp4-format=e2m1"],
    }.get(job.precision, [])
    positions = max(job.seq, job.workload.max_positions)
    return [
        f"--micro-batch-size={job.layout.micro_batch}",
        f"--global-batch-size={job.global_batch}",
        f"--seq-length={job.seq}",
        f"--max-position-embeddings={positions}",
        *precision,
        *(["--grad-reduce-in-bf16"] if job.training.gradients == "bf16" else []),
    ]


def _model(workload: Workload) -> list[str]:
    switches = {
        "--swiglu": workload.is_gated,
        "--disable-bias-linear": not workload.has_bias,
        "--untie-embeddings-and-output-weights": not workload.is_tied,
        "--add-qkv-bias": workload.has_qkv_bias,
        "--qk-layernorm": workload.has_qk_norm,
    }
    return [
        f"--num-layers={workload.num_layers}",
        f"--hidden-size={workload.hidden}",
        f"--ffn-hidden-size={workload.ffn or workload.expert_ffn}",
        f"--num-attention-heads={workload.num_heads}",
        f"--vocab-size={workload.vocab or 1024}",
        f"--position-embedding-type={'learned_absolute' if workload.max_positions else 'rope'}",
        f"--normalization={'LayerNorm' if workload.has_bias else 'RMSNorm'}",
        *(switch for switch, is_on in switches.items() if is_on),
        *_attention(workload),
        *_experts(workload),
    ]


def _attention(workload: Workload) -> list[str]:
    if workload.kv_rank:  # multi-head latent attention
        return [
            "--multi-latent-attention",
            *([f"--q-lora-rank={workload.q_rank}"] if workload.q_rank else []),
            f"--kv-lora-rank={workload.kv_rank}",
            f"--qk-head-dim={workload.head_dim}",
            f"--qk-pos-emb-head-dim={workload.rope_dim}",
            f"--v-head-dim={workload.value_dim or workload.head_dim}",
        ]
    words = [f"--kv-channels={workload.head_dim}"]
    if workload.num_kv_heads != workload.num_heads:
        words += ["--group-query-attention", f"--num-query-groups={workload.num_kv_heads}"]
    return words


def _experts(workload: Workload) -> list[str]:
    if not workload.num_experts:
        return []
    words = [
        f"--num-experts={workload.num_experts}",
        f"--moe-router-topk={workload.experts_per_token}",
        f"--moe-ffn-hidden-size={workload.expert_ffn}",
        "--moe-grouped-gemm",
        "--moe-token-dispatcher-type=alltoall",
    ]
    if workload.shared_ffn:
        words.append(f"--moe-shared-expert-intermediate-size={workload.shared_ffn}")
    num_dense_layers = workload.num_layers - workload.num_moe_layers
    if num_dense_layers:
        words.append(f"--moe-layer-freq=([0]*{num_dense_layers}+[1]*{workload.num_moe_layers})")
    return words


def _run() -> list[str]:
    return ["--tokenizer-type=NullTokenizer", "--mock-data", "--train-iters=20", "--lr=1e-4"]
