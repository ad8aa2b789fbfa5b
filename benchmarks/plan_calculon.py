"""Calculon beside `flatout plan`: evaluations a second on one core, and errors on the runs that it can express.

    git clone https://github.com/calculon-ai/calculon /tmp/calculon && git -C /tmp/calculon checkout caa4b11
    OMP_NUM_THREADS=1 PYTHONPATH=/tmp/calculon python benchmarks/plan_calculon.py /tmp/calculon RUNS.csv [--out FILE]

In one process, unmodified but for the memory limit of its A100, which is lifted so that no row is refused: it has no
vocabulary, grouped-query attention, gate, mixture, ZeRO 3 or FSDP, so rows with these are left out. Rates: the same
layouts of GPT3-175B on 4,096 A100, in CPU seconds of the process, rounds of the two in turn. Errors of Flatout: each
source by constants fitted to the others.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from flatout.catalog import all_models
from flatout.plan.calibrate import fit, predict_logs
from flatout.plan.clusters import cluster
from flatout.plan.layouts import TrainingSpec, all_layouts, layout_at
from flatout.plan.runs import MeasuredRun, as_inputs, read_runs
from flatout.plan.search_context import SearchContext, evaluate_layouts
from flatout.plan.shipped import shipped
from flatout.records.plan import Layout, Software

SAMPLE = 400
Seconds = float


class Calculon:
    def __init__(self, checkout: Path) -> None:
        from calculon import System  # type: ignore[import-not-found]
        from calculon.llm import Llm  # type: ignore[import-not-found]

        self.llm, self.system_class = Llm, System
        self.machine = json.loads((checkout / "systems/a100_80g.json").read_text())
        self.machine["mem1"]["GiB"] = 1e6
        self.log = logging.getLogger("calculon")
        self.log.setLevel(logging.ERROR)

    def seconds(self, shape: dict[str, int], execution: dict[str, Any]) -> Seconds | None:
        """Of a step; None: it refuses the layout."""
        try:
            model = self.llm(self.llm.Application(shape), self.log)
            system = self.system_class(self.machine)
            model.compile(system, self.llm.Execution.from_json(execution))
            model.run(system)
            return float(model.get_total_time())
        except (self.llm.Error, AssertionError):
            return None


def execution(layout: Layout, num_gpus: int, batch: int) -> dict[str, Any]:
    sharded = layout.tp > 1 and layout.sequence_parallel
    return {
        "num_procs": num_gpus,
        "tensor_par": layout.tp,
        "pipeline_par": layout.pp,
        "data_par": layout.dp,
        "tensor_par_net": 0 if layout.tp <= 8 else 1,
        "pipeline_par_net": 1 if num_gpus > 8 else 0,
        "data_par_net": 1 if num_gpus > 8 else 0,
        "batch_size": batch,
        "microbatch_size": layout.micro_batch,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": {"full": "full", "selective": "attn_only", "none": "none"}[layout.recompute],
        "pipeline_interleaving": layout.vpp,
        "optimizer_sharding": layout.zero == 1 and layout.dp > 1,
        "tensor_par_comm_type": "rs_ag" if sharded else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": False,
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def shape_of(columns: dict[str, float]) -> dict[str, int]:
    names = {"hidden": "hidden", "feedforward": "ffn", "seq_size": "seq", "attn_heads": "heads",
             "attn_size": "head_dim", "num_blocks": "layers"}  # fmt: skip
    return {theirs: int(columns[ours]) for theirs, ours in names.items()}


def can_express(run: MeasuredRun) -> bool:
    c = run.columns
    is_a100 = abs(c["half_peak"] / 0.869 - 312e12) < 1e12
    even = c["layers"] % (c["pp"] * c["vpp"]) == 0
    plain = c["ffn_matrices"] == 2 and c["experts"] == 0 and c["kv_width"] == 2 * c["heads"] * c["head_dim"]
    return run.step_time_s is not None and is_a100 and even and plain and c["zero"] <= 1 and c["cp"] == 1


def layout_of(c: dict[str, float]) -> Layout:
    return Layout(
        tp=int(c["tp"]), sequence_parallel=bool(c["sp"]), pp=int(c["pp"]), vpp=int(c["vpp"]), dp=int(c["dp"]),
        zero=int(c["zero"]), micro_batch=int(c["micro_batch"]), num_micro_batches=int(c["num_micro"]),
        recompute="full" if c["full"] else "selective" if c["selective"] else "none",
    )  # fmt: skip


def errors(calculon: Calculon, path: Path) -> list[dict[str, Any]]:
    runs, _ = read_runs(path)
    timed = [run for run in runs if run.step_time_s is not None]
    found = []
    for source in dict.fromkeys(run.source for run in timed):
        own = [run for run in timed if run.source == source and can_express(run)]
        theirs = []
        for run in own:
            layout = layout_of(run.columns)
            batch = layout.dp * layout.micro_batch * layout.num_micro_batches
            theirs.append(calculon.seconds(shape_of(run.columns), execution(layout, int(run.columns["gpus"]), batch)))
        both = [(run, value) for run, value in zip(own, theirs, strict=True) if value is not None]
        if not both:
            continue
        measured = np.array([run.step_time_s for run, _ in both], dtype=np.float64)
        others = [run for run in timed if run.source != source]
        seconds = np.log(np.array([run.step_time_s for run in others], dtype=np.float64))
        constants = fit(as_inputs(others), seconds, [run.source for run in others])
        ours = np.exp(predict_logs(as_inputs([run for run, _ in both]), constants)[0]) / measured - 1.0
        their = np.array([value for _, value in both]) / measured - 1.0
        found.append(
            {
                "source": source,
                "rows": len(both),
                "calculon_mape": float(np.mean(np.abs(their))),
                "calculon_bias": float(np.mean(their)),
                "flatout_mape": float(np.mean(np.abs(ours))),
                "flatout_bias": float(np.mean(ours)),
            }
        )
    return found


def rates(calculon: Calculon, rounds: int) -> dict[str, Any]:
    found, shares = cluster("a100x4096")
    model = all_models()["gpt3-175b"]
    batch, seq = 3072, 2048
    spec = TrainingSpec(workload=model, cluster=found, global_batch=batch, seq=seq)
    context = SearchContext(
        spec=spec, precision="fp16", matmul_share=shares, software=Software(), calibration=shipped()
    )
    columns = all_layouts(spec)
    # What Calculon can express: no context parallelism, ZeRO 0 or 1 over all replicas, and its one schedule.
    keep = (columns["cp"] == 1) & (columns["zero"] <= 1) & (columns["shard"] == 0) & (columns["schedule"] == 1)
    shared = {name: values[keep] for name, values in columns.items()}
    count = len(shared["tp"])
    rows = np.random.default_rng(0).choice(count, SAMPLE, replace=False)
    shape = {"hidden": 12288, "feedforward": 49152, "seq_size": seq, "attn_heads": 96, "attn_size": 128,
             "num_blocks": 96}  # fmt: skip
    layouts = [layout_at(shared, int(row)) for row in rows]
    theirs, ours, refused = [], [], 0
    for _ in range(rounds):
        began = time.process_time()
        refused = sum(calculon.seconds(shape, execution(layout, 4096, batch)) is None for layout in layouts)
        between = time.process_time()
        evaluate_layouts(context, shared)
        theirs.append(SAMPLE / (between - began))
        ours.append(count / (time.process_time() - between))
    return {
        "layouts_of_both": count,
        "sample": SAMPLE,
        "refused_by_calculon": refused,
        "calculon_per_cpu_s": {"median": statistics.median(theirs), "min": min(theirs), "max": max(theirs)},
        "flatout_per_cpu_s": {"median": statistics.median(ours), "min": min(ours), "max": max(ours)},
        "ratio": statistics.median(mine / its for mine, its in zip(ours, theirs, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    calculon = Calculon(arguments.checkout)
    result = {"errors": errors(calculon, arguments.runs), "rates": rates(calculon, arguments.rounds)}
    for one in result["errors"]:
        print(
            f"{one['source']:14s}{one['rows']:>4} rows  "
            f"Calculon {one['calculon_mape']:6.1%} ({one['calculon_bias']:+.1%})  "
            f"Flatout {one['flatout_mape']:6.1%} ({one['flatout_bias']:+.1%})"
        )
    print(json.dumps(result["rates"]))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
