"""A CSV of measured runs -> cases, one a row: the format of published runs, with `source_family` and `group`.

A row is used for time when its shape, layout, micro-batch, global batch and step time are known, and for memory when
its peak is. What the file leaves open is filled in by rules that are named here, never from the measured value.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from flatout.catalog import all_gpu_facts, all_models
from flatout.errors import InputError
from flatout.plan import case as cases
from flatout.plan import clusters
from flatout.plan.case import Case, Software
from flatout.records.plan import Cluster, Layout, Workload

NEEDED = ("layers", "hidden", "heads", "seq_len", "gpu", "num_gpus", "tp", "pp", "micro_batch", "global_batch")
# Vocabulary where none is given: GPT-2's, padded as Megatron-LM pads it; Llama 2's; Nemotron's.
_VOCAB = (("nemotron", 256000), ("llama2", 32000), ("llama", 128256), ("mixtral", 32000), ("", 51200))
_GPU_ALIAS = (
    ("gb300", "gb300"),
    ("gb200", "gb200"),
    ("b300", "b300"),
    ("b200", "b200"),
    ("h200", "h200"),
    ("h100", "h100"),
    ("h800", "h100"),
    ("a100-40", "a100-40gb"),
    ("a100", "a100"),
    ("a800", "a100"),
    ("v100-32", "v100-32gb"),
    ("v100", "v100"),
    ("mi300x", "mi300x"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row that can be replayed."""

    source: str
    group: str
    columns: dict[str, float]
    step_time_s: float | None
    peak_memory_bytes: float | None
    ran_out_of_memory: bool
    software: Software = field(default_factory=Software)


def read_runs(path: Path) -> tuple[list[Run], int]:
    """Runs that can be replayed, and how many rows the file has. InputError: unreadable, or not of this format."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(
                    f"`{path}` must have the columns of measured runs, but lacks: {', '.join(missing)}",
                    hint="docs/how-to/plan.md lists the columns",
                )
            rows = list(reader)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"`{path}` is no CSV: {error}") from error
    runs = [run for row in rows if (run := _run(row)) is not None]
    return runs, len(rows)


def as_case(runs: list[Run]) -> Case:
    """All of them as one case."""
    return cases.stacked([run.columns for run in runs])


def usual_software(runs: list[Run]) -> Software:
    """That of most of the runs."""
    return Counter(run.software for run in runs).most_common(1)[0][0]


def _number(row: Mapping[str, str | None], name: str, default: float | None = None) -> float | None:
    text = (row.get(name) or "").strip().replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return default
    return value if np.isfinite(value) and value > 0 else default


def _whole(row: Mapping[str, str | None], name: str, default: float) -> int:
    """At least 1, or the default."""
    return int(_number(row, name) or 0) or int(default)


def _run(row: dict[str, str | None]) -> Run | None:
    """None: something that the model needs is not known."""
    needed = [_number(row, name) for name in NEEDED if name != "gpu"]
    if any(value is None or value < 1 for value in needed) or not (row.get("task") or "pretrain").startswith(
        ("pretrain", "SFT", "fine")
    ):
        return None
    workload, machine, layout = _workload(row), _cluster(row), _layout(row)
    if workload is None or machine is None or layout is None:
        return None
    cluster, shares = machine
    step = _number(row, "step_time_s") or _number(row, "step_time_s_derived")
    peak = _number(row, "peak_mem_gb")
    is_out = (row.get("oom") or "").strip() in ("1", "true", "True", "yes")
    if step is None and peak is None and not is_out:
        return None
    columns = {
        **cases.workload_columns(workload, int(_number(row, "seq_len") or 0), _document(row)),
        **cases.machine_columns(cluster, _precision(row), shares),
        **cases.software_columns(software(row)),
        **cases.layout_columns(layout),
    }
    if "offload" in (row.get("sharding") or "").lower():
        step = None  # host memory and its link are not in the file
        peak = None
    return Run(
        source=(row.get("source_family") or row.get("source") or "unnamed").strip(),
        group=(row.get("group") or "").strip(),
        columns={name: float(value) for name, value in columns.items()},
        step_time_s=None if is_out else step,
        peak_memory_bytes=None if peak is None else peak * 2**30,
        ran_out_of_memory=is_out,
        software=software(row),
    )


def _workload(row: Mapping[str, str | None]) -> Workload | None:
    def whole(name: str, default: float = 0) -> int:
        return _whole(row, name, default)

    layers, hidden, heads = whole("layers"), whole("hidden"), whole("heads")
    preset = next(
        (
            model
            for model in all_models().values()
            if (model.num_layers, model.hidden, model.num_heads) == (layers, hidden, heads)
            and (model.num_experts or 0) == whole("experts")
            and model.is_causal
        ),
        None,
    )
    name = (row.get("model") or "").lower()
    vocab = whole("vocab") or next(size for word, size in _VOCAB if word in name)
    if preset is not None and (preset.num_experts or preset.is_gated == (whole("ffn", 4 * hidden) < 4 * hidden)):
        return msgspec.structs.replace(preset, vocab=vocab)
    ffn, experts = whole("ffn", 4 * hidden), whole("experts")
    if experts and not (whole("moe_ffn") and row.get("kv_heads")):
        return None  # the shape is not known
    return Workload(
        name=name,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=whole("kv_heads") or heads,
        head_dim=max(hidden // heads, 1),
        ffn=0 if experts else ffn,
        # A gate's third matrix is paid for with narrower ones: 8/3 of the hidden width, or 3.5; never 4 or more.
        is_gated=bool(experts) or ffn < 4 * hidden,
        vocab=vocab,
        is_tied=ffn >= 4 * hidden,
        num_experts=experts,
        experts_per_token=whole("topk"),
        expert_ffn=whole("moe_ffn"),
        num_moe_layers=layers if experts else 0,
    )


def _document(row: Mapping[str, str | None]) -> int:
    """Tokens of a document, where short ones are packed into a sequence: SQuAD's have about 200."""
    return 200 if "squad packed" in (row.get("notes") or "").lower() else 0


def _cluster(row: Mapping[str, str | None]) -> tuple[Cluster, dict[str, float]] | None:
    gpu = (row.get("gpu") or "").lower()
    alias = next((alias for word, alias in _GPU_ALIAS if word in gpu), None)
    if alias is None:
        return None
    text = row.get("interconnect") or ""
    found = clusters.system(alias)
    domain = re.search(r"NVLink domain (\d+)", text)
    per_node = _whole(row, "gpus_per_node", found.gpus_per_node)
    cluster, shares = clusters.of_system(
        alias,
        found,
        int(_number(row, "num_gpus") or 1),
        gpus_per_node=per_node,
        nvlink_domain=int(domain[1]) if domain else None,
        nic_bytes_per_s=_node_rate(text, per_node),
    )
    return _variant(cluster, gpu), shares


def _variant(cluster: Cluster, gpu: str) -> Cluster:
    """What the GPU's name says beyond the catalogue: memory, HBM2e (16 GB and 408 GB/s a stack), a power limit.

    Under a limit below the data sheet's, clocks are taken to follow the square root of the power.
    """
    if "800" in gpu:  # the variants for China: 400 GB/s of NVLink in place of 600 or 900
        cluster = msgspec.structs.replace(cluster, link_bytes_per_s=200e9)
    facts = next(facts for facts in all_gpu_facts() if facts.name == cluster.gpu)
    if match := re.search(r"(\d+)gb-hbm2e", gpu):
        cluster = msgspec.structs.replace(
            cluster, memory_bytes=int(match[1]) << 30, memory_bytes_per_s=int(match[1]) / 16 * 408e9
        )
    if (match := re.search(r"-(\d+)w\b", gpu)) and facts.tdp_w and float(match[1]) < facts.tdp_w:
        slower = (float(match[1]) / facts.tdp_w) ** 0.5
        cluster = msgspec.structs.replace(
            cluster, peak_flops_per_s={dtype: peak * slower for dtype, peak in cluster.peak_flops_per_s.items()}
        )
    return cluster


def _node_rate(text: str, per_node: int) -> float | None:
    """Bytes a second of a node's adapters, from words such as `8x HDR 200Gb/s per node`; None: nothing is said."""
    if match := re.search(r"(?:(\d+)x[^,;0-9]*)?(\d+) ?Gb(?:ps|/s|it/s)?(?: \w+)? ?(?:/|per )(node|GPU)", text):
        rate = float(match[1] or 1) * float(match[2])
        return rate / 8 * 1e9 * (per_node if match[3] == "GPU" else 1)
    if match := re.search(r"(\d+)x Omni-Path", text):
        return float(match[1]) * 100 / 8 * 1e9
    if match := re.search(r"(\d+)x ?(\d+) ?Gb\b", text):
        return float(match[1]) * float(match[2]) / 8 * 1e9
    if match := re.search(r"(\d+)x(\d+) GB/s", text):
        return float(match[1]) * float(match[2]) * 1e9
    return None


def _precision(row: Mapping[str, str | None]) -> str:
    text = (row.get("precision") or "bf16").lower()
    if "fp4" in text:
        return "fp4"
    if "fp8" in text or "float8" in text:
        return "fp8-rowwise" if "rowwise" in text else "fp8"
    if "fp16" in text:
        return "fp16"
    return "fp32" if "32" in text and "16" not in text else "bf16"


def software(row: Mapping[str, str | None]) -> Software:
    """By the framework's name and year. Before FlashAttention (2022), Megatron-LM and its forks wrote the scores."""
    name = (row.get("framework") or "").lower()
    precision, precision_text = _precision(row), (row.get("precision") or "").lower()
    notes, recompute = (row.get("notes") or "").lower(), row.get("recompute") or ""
    words = ("2021", "2022", "bloom", "oneflow", "megatron-deepspeed", "megatron-lm + deepspeed")
    old = any(word in name for word in words)
    nvidia = is_nvidia(row)
    in_half = "pure" in (row.get("precision") or "") or any(word in name for word in ("internevo", "fms"))
    is_eager = "compile" not in notes and any(
        word in name for word in ("composer", "torchtitan", "deepspeed zero", "hf", "nanotron", "automodel")
    )
    # From 26.06 on, the MXFP8 recipes with experts: github.com/NVIDIA-NeMo/Megatron-Bridge, pulls 3983, 4226 and 4249.
    release = re.search(r"\b(2\d)\.(\d\d)\b[.\d]* nemo container", notes)
    is_graphed = release is not None and (int(release[1]), int(release[2])) >= (26, 6) and "mxfp8" in precision_text
    by_parameter = "deepspeed" in name and "zero-3" in (row.get("sharding") or "").lower()
    return Software(
        fused_attention=not old,
        # OneFlow runs collectives on the compute stream once there are tensor-parallel ones.
        overlaps_dp=(not old or ("oneflow" in name and row.get("tp") == "1")) and not by_parameter,
        overlaps_pp=not old or "oneflow" in name,
        has_late_attention=nvidia,
        has_first_flash="composer" in name,
        scatters_sends="deepspeed" not in name and "bloom" not in name and "oneflow" not in name,
        overlaps_tp=1.0 if nvidia and "fsdp" not in (row.get("sharding") or "").lower() else 0.5 * ("asynctp" in notes),
        overlaps_ep=is_graphed or "ep-comm overlap" in notes,
        uses_graphs=is_graphed,
        is_blocking="cuda_launch_blocking=1" in notes,
        is_eager=is_eager,
        gathers_per_layer=12.0 if by_parameter else 1.0,
        gather_copies=2.0 if by_parameter else 1.0,
        gathers_again=by_parameter,
        gradient_bytes=2.0 if precision == "fp16" or nvidia or in_half else 4.0,
        held_gradient_bytes=2.0 if precision == "fp16" else 6.0 if "deepspeed" in name and old else 4.0,
        selective_share=0.5 if "selective(op" in recompute or "selective(layer)" in recompute else 0.0,
    )


def _usual_chunks(row: Mapping[str, str | None], pp: int) -> int:
    """Chunks of a pipeline rank where none are given: NVIDIA's recipes interleave, with single layers up to 10."""
    layers = _whole(row, "layers", 1)
    if not is_nvidia(row) or layers % pp:
        return 1
    return max(chunks for chunks in range(1, 11) if layers // pp % chunks == 0)


def is_nvidia(row: Mapping[str, str | None]) -> bool:
    """Whether the framework is one of NVIDIA's current ones, or made from it."""
    name = (row.get("framework") or "").lower()
    words = ("nemo", "megatron-bridge", "megatron-core", "megascale")
    return "automodel" not in name and any(word in name for word in words)


def _layout(row: Mapping[str, str | None]) -> Layout | None:
    def whole(name: str) -> int:
        return _whole(row, name, 1)

    tp, pp, cp = whole("tp"), whole("pp"), whole("cp")
    num_gpus, micro, batch = whole("num_gpus"), whole("micro_batch"), whole("global_batch")
    if num_gpus % (tp * pp * cp):
        return None
    dp = num_gpus // (tp * pp * cp)
    sharding = (row.get("sharding") or "").lower()
    zero = 0
    if "zero-2" in sharding or "shard-grad-op" in sharding:
        zero = 2
    elif "fsdp" in sharding or "zero-3" in sharding or "zero3" in sharding:
        zero = 3
    elif "zero-1" in sharding or "dist" in sharding or "zero1" in sharding:
        zero = 1
    elif "hsdp" in sharding or "hybrid" in sharding:
        zero = 3
    group = re.search(r"(?:group|size|shard)[ =]*(?:of )?(\d+)", sharding)
    shard = int(group[1]) if group else 0
    if not group and ("hsdp" in sharding or "hybrid" in sharding):
        shard = int(_number(row, "gpus_per_node") or 8)
    if dp * cp == 1 or shard >= dp * cp or shard < 2 or (dp * cp) % shard:
        shard = 0
    parallel = (row.get("sequence_parallel") or "").lower()
    modern = not parallel and software(row).fused_attention
    recompute = (row.get("recompute") or "").lower()
    return Layout(
        tp=tp,
        sequence_parallel=tp > 1 and (parallel.startswith(("yes", "recipe", "true")) or modern),
        pp=pp,
        vpp=(whole("vpp") if row.get("vpp") else _usual_chunks(row, pp)) if pp > 1 else 1,
        cp=cp,
        ep=whole("ep"),
        dp=dp,
        zero=zero,
        shard=shard,
        offload="offload" in sharding,
        micro_batch=micro,
        num_micro_batches=max(round(batch / (dp * micro)), 1),
        recompute="full"
        if recompute.startswith("full")
        else "selective"
        if recompute.startswith("selective")
        else "none",
        schedule="zero-bubble" if "zb" in (row.get("vpp") or "").lower() else "1f1b",
    )
