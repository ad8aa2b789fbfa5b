"""The columns of a search against the rules checked one layout at a time, and the errors where no layout is left."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from flatout.catalog import all_models
from flatout.errors import InputError, UsageError
from flatout.plan.clusters import cluster
from flatout.plan.fixed_parameters import only
from flatout.plan.layouts import TrainingSpec, _shardings, all_layouts, chunks_are_valid, layout_at
from flatout.records.plan import has_own_split, layers_of_chunks


def spec_of(model: str, machine: str, batch: int, seq: int) -> TrainingSpec:
    return TrainingSpec(workload=all_models()[model], cluster=cluster(machine)[0], global_batch=batch, seq=seq)


def can_be_split(num_layers: int, pp: int, vpp: int) -> bool:
    """Whether all chunks but the first and the last can be equal, and these two have what is left."""
    num_between = pp * vpp - 2
    most = next(layers for layers in range(1, num_layers + 1) if layers * pp * vpp >= num_layers)
    left = num_layers - num_between * most
    if vpp == 1:
        return left > most  # the first stage has as many as the others, and the last one the rest
    return left >= 0  # the first chunk has the embedding, and the last one the logits


@pytest.mark.parametrize(
    ("pp", "vpp", "layers"),
    [
        (4, 4, [4] * 15 + [1]),
        (2, 8, [4] * 15 + [1]),
        (8, 2, [4] * 15 + [1]),
        (16, 1, [4] * 15 + [1]),
        (4, 2, [8] * 7 + [5]),
        (8, 1, [8] * 7 + [5]),
        (4, 1, [16] * 3 + [13]),
        (8, 4, [1] + [2] * 30 + [0]),
        (16, 4, [-1] + [1] * 62 + [0]),  # cannot be split so
    ],
)
def test_61_layers_are_split_over_chunks_as_in_nvidias_recipe_of_deepseek_v3(
    pp: int, vpp: int, layers: list[int]
) -> None:
    """But the last two, these are the splits of NeMo's recipe of DeepSeek-V3 (`map_pp_vp_to_layout`)."""
    assert layers_of_chunks(61, pp, vpp) == layers
    assert chunks_are_valid(spec_of("deepseek-v3", "h100x64", 64, 4096).workload, pp, vpp) == (layers[0] >= 0)


def test_chunks_that_count_the_ends_lack_a_layer_at_both() -> None:
    assert layers_of_chunks(94, 8, 4) == [2] + [3] * 30 + [2]
    assert layers_of_chunks(126, 16, 8) == [0] + [1] * 126 + [0]  # NVIDIA's Llama 3.1 405B on GB200
    assert not has_own_split(126, 16, 8)
    assert not has_own_split(94, 8, 4)
    assert not has_own_split(96, 8, 4)
    assert has_own_split(61, 8, 2)
    assert not has_own_split(61, 16, 1)


@pytest.mark.parametrize(
    ("model", "machine", "batch", "seq"),
    [("gpt3-125m", "h100x12", 24, 512), ("llama3-8b", "h100x16", 16, 1024), ("qwen3-30b-a3b", "h100x8", 8, 512)],
)
def test_a_search_has_the_layouts_that_obey_the_rules_and_no_other(
    model: str, machine: str, batch: int, seq: int
) -> None:
    spec = spec_of(model, machine, batch, seq)
    w, n = spec.workload, spec.cluster.num_gpus
    expected = set()
    up_to = range(1, n + 1)
    for tp, pp, cp in itertools.product(up_to, up_to, up_to):
        if n % (tp * pp * cp) or w.hidden % tp or w.num_heads % tp or w.ffn % tp:
            continue
        if w.num_kv_heads % tp and tp % w.num_kv_heads:
            continue
        if cp > 1 and seq % (2 * cp * tp):
            continue
        dp = n // (tp * pp * cp)
        for vpp, mbs in itertools.product(range(1, w.num_layers + 1), range(1, batch + 1)):
            if batch % (dp * mbs) or vpp > 64:
                continue
            m = batch // (dp * mbs)
            if vpp > 1 and (pp == 1 or m % pp):
                continue
            if pp > 1 and not can_be_split(w.num_layers, pp, vpp):
                continue
            for ep in range(1, max(w.num_experts, 1) + 1):
                if (w.num_experts or 1) % ep or (n // pp) % ep:
                    continue
                # Shards over all replicas, or over as many as an NVLink domain has beside TP.
                domain = spec.cluster.nvlink_domain
                near = max(k for k in range(1, dp * cp + 1) if dp * cp % k == 0 and (k == 1 or k * tp <= domain))
                kinds = [(zero, 0) for zero in range(4)]
                kinds += [(1, near), (3, near)] if 1 < near < dp * cp else []
                schedules = ("gpipe", "1f1b", "zero-bubble")
                for (zero, shard), sp, schedule in itertools.product(kinds, (0, 1), schedules):
                    if (zero and dp * cp == 1) or (zero == 2 and (pp > 1 or m > 1)) or (sp and tp == 1):
                        continue
                    if schedule != "1f1b" and (pp == 1 or vpp > 1):
                        continue
                    expected.add((tp, pp, cp, dp, vpp, mbs, m, ep, zero, shard, sp, schedule))
    columns = all_layouts(spec)
    found = [layout_at(columns, row) for row in range(len(columns["tp"]))]
    keys = [
        (x.tp, x.pp, x.cp, x.dp, x.vpp, x.micro_batch, x.num_micro_batches, x.ep, x.zero, x.shard,
         int(x.sequence_parallel), x.schedule) for x in found
    ]  # fmt: skip
    assert set(keys) == expected
    assert len(keys) == 3 * len(expected)  # each with three kinds of recomputation
    assert all(x.tp * x.pp * x.cp * x.dp == n and x.dp * x.micro_batch * x.num_micro_batches == batch for x in found)


def test_layouts_with_the_optimizer_on_the_host_are_listed_when_asked_for() -> None:
    spec = spec_of("llama3-8b", "h100x16", 16, 1024)
    plain, both = all_layouts(spec), all_layouts(replace(spec, offloads=True))
    assert not plain["offload"].any()
    assert (both["offload"] == 0).sum() == len(plain["tp"])
    assert (both["offload"] == 1).sum() == len(plain["tp"]) - (
        (plain["zero"] == 0) & (plain["dp"] * plain["cp"] > 1)
    ).sum()


def test_fixed_parameters_are_kept() -> None:
    spec = spec_of("llama3-8b", "h100x16", 32, 2048)
    kept = only(spec, all_layouts(spec), ["tp=4", "recompute=full"])
    assert set(kept["tp"]) == {4.0}
    assert set(kept["recompute"]) == {2.0}


@pytest.mark.parametrize(
    ("fixed", "message", "hint"),
    [
        ("tp=3", "tp must divide 32 heads, .* but got tp = 3 on 16 GPUs", "nearest that works is tp = 2"),
        ("pp=7", "pp must split 32 layers", "nearest that works is pp = 8"),
        ("ep=2", "ep must divide 0 experts", "nearest that works is ep = 1"),
    ],
)
def test_a_layout_that_does_not_divide_names_the_rule_and_the_nearest(fixed: str, message: str, hint: str) -> None:
    spec = spec_of("llama3-8b", "h100x16", 32, 2048)
    with pytest.raises(InputError, match=message) as error:
        only(spec, all_layouts(spec), [fixed])
    assert hint in error.value.hint


@pytest.mark.parametrize("fixed", ["tp", "colour=3", "recompute=some", "tp=x"])
def test_an_unknown_parameter_or_value_is_a_usage_error(fixed: str) -> None:
    spec = spec_of("llama3-8b", "h100x16", 32, 2048)
    with pytest.raises(UsageError):
        only(spec, all_layouts(spec), [fixed])


def test_columns_are_numbers() -> None:
    assert {values.dtype for values in all_layouts(spec_of("llama3-8b", "h100x16", 32, 2048)).values()} == {
        np.dtype(np.float64)
    }


@pytest.mark.parametrize("machine", ["h100x16", "gb200x72"])
@pytest.mark.parametrize("replicas_of", [1, 2, 3])
def test_shards_within_a_domain_are_the_largest_that_divide(machine: str, replicas_of: int) -> None:
    spec = spec_of("llama3-8b", machine, 16, 1024)
    domain = spec.cluster.nvlink_domain
    for tp in (1, 2, 4, 8, 128):
        for replicas in range(2, 40 * replicas_of, replicas_of):
            groups = {sharding.shard for sharding in _shardings(spec, replicas, tp, 1)} - {0.0}
            sizes = [size for size in range(2, replicas) if replicas % size == 0 and size * tp <= domain]
            is_whole = replicas * tp <= domain  # then all replicas are the group
            assert groups == (set() if is_whole else set(map(float, sizes[-1:])))
