"""How many layouts a second `flatout plan` evaluates on one core: enumeration, the whole time model and memory model.

    OMP_NUM_THREADS=1 python benchmarks/plan_search.py [--rounds 5] [--out FILE]

One process, one thread. Rates are by the process's CPU time, since other work may run beside; `plan_s` is wall time.
Each round goes through every search in turn; medians and ranges over the rounds are given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from flatout.catalog import all_models
from flatout.plan.clusters import cluster
from flatout.plan.layouts import TrainingSpec, all_layouts
from flatout.plan.search import plan
from flatout.plan.search_context import SearchContext, evaluate_layouts
from flatout.plan.shipped import shipped
from flatout.records.plan import Software

SEARCHES = (
    ("gpt3-175b", "a100x4096", 3072, 2048, "bf16"),
    ("llama3-70b", "h100x512", 1024, 8192, "bf16"),
    ("llama3.1-405b", "h100x16384", 2048, 8192, "bf16"),
    ("qwen3-235b-a22b", "h100x256", 2048, 4096, "bf16"),
    ("deepseek-v3", "h100x2048", 15360, 4096, "fp8"),
)


def context(model: str, machine: str, batch: int, seq: int, precision: str) -> SearchContext:
    found, shares = cluster(machine)
    spec = TrainingSpec(workload=all_models()[model], cluster=found, global_batch=batch, seq=seq)
    return SearchContext(
        spec=spec, precision=precision, matmul_share=shares, software=Software(), calibration=shipped()
    )


def measure(search: tuple[str, str, int, int, str]) -> dict[str, Any]:
    chosen = context(*search)
    began = time.process_time()
    columns = all_layouts(chosen.spec)
    listed = time.process_time()
    evaluate_layouts(chosen, columns)
    evaluated = time.process_time()
    before = time.perf_counter()
    plan(chosen)
    planned = time.perf_counter()
    count = len(columns["tp"])
    return {
        "layouts": count,
        "layouts_per_s": count / (evaluated - began),
        "layouts_per_s_model_only": count / (evaluated - listed),
        "plan_s": planned - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rounds = [[measure(search) for search in SEARCHES] for _ in range(arguments.rounds)]
    results = []
    for number, search in enumerate(SEARCHES):
        mine = [each[number] for each in rounds]
        result: dict[str, Any] = {"search": " ".join(map(str, search)), "layouts": mine[0]["layouts"]}
        for name in ("layouts_per_s", "layouts_per_s_model_only", "plan_s"):
            values = [one[name] for one in mine]
            result[name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        results.append(result)
        rate, spent = result["layouts_per_s"], result["plan_s"]
        print(
            f"{result['search']:48s}{result['layouts']:>10,} layouts  {rate['median']:>10,.0f} a second "
            f"({rate['min']:,.0f} to {rate['max']:,.0f}), a plan in {spent['median']:.2f} s"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps({"rounds": arguments.rounds, "searches": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
