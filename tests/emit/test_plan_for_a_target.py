"""Whatever `plan --for FRAMEWORK` offers can be written for it, with the framework's own names only."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.emit.test_plan_targets import DEEPSPEED, MEGATRON, TORCHTITAN, arguments
from tests.plan.test_search import setting_of

from flatout.emit import plan_deepspeed, plan_torchtitan
from flatout.emit.plan_targets import PLAN_TARGETS, settings_for
from flatout.plan.layouts import Columns, TrainingSpec, all_layouts, layout_at
from flatout.plan.targets import runnable
from flatout.records.plan_details import PlannedJob

NUM_SAMPLES = 40  # random layouts per target and job
JOBS = [
    ("llama3-8b", "h100x8", "bf16"),
    ("llama3-70b", "h100x64", "bf16"),
    ("qwen3-30b-a3b", "h100x64", "bf16"),
    ("gpt3-13b", "a100x64", "fp16"),
]


@cache
def spec_and_layouts(model: str, cluster: str) -> tuple[TrainingSpec, Columns]:
    """Return all layouts, which are the same for each target, also with the optimizer on the host."""
    spec = replace(setting_of(model, cluster).spec, offloads=True)
    return spec, all_layouts(spec)


def sampled_jobs(model: str, cluster: str, precision: str, target: str) -> list[PlannedJob]:
    """Return jobs with random layouts of those that the target can run."""
    spec, layouts = spec_and_layouts(model, cluster)
    columns, _ = runnable(spec, layouts, target=target, precision=precision)
    count = len(columns["tp"])
    rows = np.random.default_rng(0).choice(count, min(NUM_SAMPLES, count), replace=False)
    return [
        PlannedJob(
            workload=spec.workload,
            cluster=spec.cluster,
            layout=layout_at(columns, int(row)),
            global_batch=spec.global_batch,
            seq=spec.seq,
            precision=precision,
            step_time_s=1.0,
            step_time_interval_s=(0.8, 1.2),
            memory_bytes=5e10,
            out_of_memory_probability=0.01,
        )
        for row in rows
    ]


@pytest.mark.parametrize("target", PLAN_TARGETS)
@pytest.mark.parametrize(("model", "cluster", "precision"), JOBS)
def test_what_is_offered_is_written(target: str, model: str, cluster: str, precision: str) -> None:
    jobs = sampled_jobs(model, cluster, precision, target)
    if (target, precision) == ("torchtitan", "fp16"):
        assert jobs == [], "torchtitan trains in bf16 or fp32"
        return
    assert jobs
    for job in jobs:
        emitted = settings_for(target, job)
        assert all(each.text for each in emitted)
        if target == "megatron":
            words = arguments(emitted[0].text)
            start = next(index for index, word in enumerate(words) if word.endswith("pretrain_gpt.py")) + 1
            modules = {word for word in words[start:] if not word.startswith("--")}
            assert modules <= {"layernorm", "moe_act", "mla_up_proj"}  # the values of --recompute-modules
            names = {word.removeprefix("--").split("=")[0] for word in words[start:] if word not in modules}
            assert names <= MEGATRON
        elif target == "torchtitan":
            options = plan_torchtitan.settings(job)
            assert set(options) <= TORCHTITAN
            degrees = [
                int(value) for name, value in options.items() if name.endswith("_degree") and "expert" not in name
            ]
            assert int(np.prod(degrees)) == job.cluster.num_gpus
        elif target == "deepspeed":
            found = plan_deepspeed.settings(job)
            json.dumps(found)
            keys = [
                *found,
                *(f"{name}.{key}" for name, each in found.items() if isinstance(each, dict) for key in each),
            ]
            assert set(keys) <= DEEPSPEED
        else:
            compile(emitted[0].text, emitted[0].path, "exec")
