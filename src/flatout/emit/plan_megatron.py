"""A launch script for Megatron-LM's `pretrain_gpt.py`. Names: core_v0.15.0, `megatron/training/arguments.py`.

Data are mock ones: the script measures the layout, and arguments that are added replace them (the last one counts).
"""

from __future__ import annotations

import shlex

from flatout.emit.plan_heading import script, torchrun_words
from flatout.records.plan import Workload
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

TARGET = "Megatron-LM core_v0.15.0"


def emit(job: PlannedJob) -> tuple[Emitted, ...]:
    notes = unexpressed(job)
    groups = [
        " ".join([*torchrun_words(job), '"${MEGATRON:-.}/pretrain_gpt.py"']),
        *(" ".join(map(shlex.quote, words)) for words in (_parallel(job), _batch(job), _model(job.workload), _run())),
    ]
    is_fsdp = job.layout.zero >= 2
    # Before Blackwell, TP's and CP's overlap needs kernels in the order in which they were launched; FSDP forbids it.
    environment = {} if is_fsdp or job.layout.tp * job.layout.cp == 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    text = script(job, TARGET, notes, environment, groups)
    return (Emitted(path="megatron_plan.sh", text=text, notes=notes),)


def unexpressed(job: PlannedJob) -> tuple[str, ...]:
    """What Megatron-LM has no argument for."""
    layout, notes = job.layout, []
    if layout.schedule == "zero-bubble":
        notes.append("Megatron-LM has no zero-bubble schedule: this runs 1F1B, whose bubble is longer than predicted")
    if layout.schedule == "gpipe" and layout.pp > 1:
        notes.append("Megatron-LM has no GPipe schedule: this runs 1F1B, which holds fewer activations")
    if layout.offload and not layout.zero:
        notes.append("Megatron-LM offloads the distributed optimizer only: the optimizer stays on the GPU")
    workload = job.workload
    if workload.patch_inputs or not workload.is_causal:
        notes.append(f"{workload.name} is no causal language model: pretrain_gpt.py trains a GPT of the same size")
    uneven = workload.num_layers % (layout.pp * layout.vpp)
    if uneven and (workload.num_layers - _last_stage(job)) % max(layout.pp - 1, 1):
        notes.append(f"{workload.num_layers} layers on {layout.pp} stages: give --pipeline-model-parallel-layout")
    return tuple(notes)


def _parallel(job: PlannedJob) -> list[str]:
    layout = job.layout
    words = [f"--tensor-model-parallel-size={layout.tp}", f"--pipeline-model-parallel-size={layout.pp}"]
    if layout.sequence_parallel:
        words.append("--sequence-parallel")
    if layout.vpp > 1:
        words.append(f"--num-virtual-stages-per-pipeline-rank={layout.vpp}")
    elif job.workload.num_layers % layout.pp:
        words.append(f"--decoder-last-pipeline-num-layers={_last_stage(job)}")
    if layout.cp > 1:
        words += [f"--context-parallel-size={layout.cp}", "--cp-comm-type=p2p"]
    if job.workload.num_experts:
        words += [f"--expert-model-parallel-size={layout.ep}", "--expert-tensor-parallel-size=1"]
    if layout.zero == 1:
        words += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    elif layout.zero == 0:
        words.append("--overlap-grad-reduce")
    else:
        strategy = "optim_grads" if layout.zero == 2 else "optim_grads_params"
        words += ["--use-distributed-optimizer", "--use-megatron-fsdp", f"--data-parallel-sharding-strategy={strategy}"]
        words += ["--overlap-grad-reduce", "--overlap-param-gather", "--ckpt-format=fsdp_dtensor"]
    if 0 < layout.shard < layout.dp * layout.cp and layout.zero:
        words.append(f"--num-distributed-optimizer-instances={layout.dp * layout.cp // layout.shard}")
    if layout.offload and layout.zero:
        words += ["--optimizer-cpu-offload", "--optimizer-offload-fraction=1.0", "--use-precision-aware-optimizer"]
    if layout.recompute == "selective":
        words.append("--recompute-granularity=selective")
    elif layout.recompute == "full":
        words += ["--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1"]
    return words


def _last_stage(job: PlannedJob) -> int:
    """What the other stages, with as many as it takes, leave."""
    most = -(-job.workload.num_layers // job.layout.pp)
    return job.workload.num_layers - most * (job.layout.pp - 1)


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
    ]


def _model(workload: Workload) -> list[str]:
    w = workload
    words = [
        f"--num-layers={w.num_layers}",
        f"--hidden-size={w.hidden}",
        f"--ffn-hidden-size={w.ffn or w.expert_ffn}",
        f"--num-attention-heads={w.num_heads}",
        f"--vocab-size={w.vocab or 1024}",
        f"--position-embedding-type={'learned_absolute' if w.max_positions else 'rope'}",
        f"--normalization={'LayerNorm' if w.has_bias else 'RMSNorm'}",
    ]
    if w.is_gated:
        words.append("--swiglu")
    if not w.has_bias:
        words.append("--disable-bias-linear")
    if not w.is_tied:
        words.append("--untie-embeddings-and-output-weights")
    if w.has_qkv_bias:
        words.append("--add-qkv-bias")
    if w.has_qk_norm:
        words.append("--qk-layernorm")
    if w.kv_rank:
        words += ["--multi-latent-attention", *([f"--q-lora-rank={w.q_rank}"] if w.q_rank else [])]
        words += [f"--kv-lora-rank={w.kv_rank}", f"--qk-head-dim={w.head_dim}"]
        words += [f"--qk-pos-emb-head-dim={w.rope_dim}", f"--v-head-dim={w.value_dim or w.head_dim}"]
    else:
        words.append(f"--kv-channels={w.head_dim}")
        if w.num_kv_heads != w.num_heads:
            words += ["--group-query-attention", f"--num-query-groups={w.num_kv_heads}"]
    if w.num_experts:
        dense = w.num_layers - w.num_moe_layers
        words += [f"--num-experts={w.num_experts}", f"--moe-router-topk={w.experts_per_token}"]
        words += [f"--moe-ffn-hidden-size={w.expert_ffn}", "--moe-grouped-gemm", "--moe-token-dispatcher-type=alltoall"]
        if w.shared_ffn:
            words.append(f"--moe-shared-expert-intermediate-size={w.shared_ffn}")
        if dense:
            words.append(f"--moe-layer-freq=([0]*{dense}+[1]*{w.num_moe_layers})")
    return words


def _run() -> list[str]:
    return ["--tokenizer-type=NullTokenizer", "--mock-data", "--train-iters=20", "--lr=1e-4"]
