"""How often a plan lists the layouts that the authors of published runs chose.

    python benchmarks/plan_authors.py published_runs.csv [more.csv] [--source NAME ...] [--json FILE]

For each model, GPU, number of GPUs, batch and precision, the training of the first row is planned for the framework
of that row, as `flatout plan --for` does, by constants that were not fitted to its source. A layout has the place in
the list where TP, PP and EP are its own; each combination of them counts once, as it is listed once in the ten layouts
of `flatout plan`. Rows whose model or cluster is not understood are left out.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path

from flatout.errors import InputError
from flatout.plan.fits import MemoryCalibration
from flatout.plan.layouts import TrainingSpec
from flatout.plan.memory import MemoryConstants
from flatout.plan.run_layout import layout_of, software_of
from flatout.plan.run_machine import cluster_of, precision_of
from flatout.plan.run_model import model_of
from flatout.plan.run_row import RunRow
from flatout.plan.runs import NEEDED
from flatout.plan.search import plan
from flatout.plan.search_context import SearchContext
from flatout.plan.shipped import shipped, shipped_without
from flatout.records.plan import Layout
from flatout.report.plan_text import layout_text

NUM_LAYOUTS = 100  # with few degrees, the list repeats some of them, with other recomputation or micro-batches
# Source -> the target of the plan: its framework.
NVIDIA = {"NeMo": "nemo", "Megatron-Bridge": "megatron", "dgxc-25.02": "nemo"}


def trainings(paths: list[Path], sources: tuple[str, ...]) -> Iterator[RunRow]:
    """Yield the first row of each training of the sources."""
    seen = set()
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            for cells in csv.DictReader(file):
                row = RunRow(cells)
                columns = ("source_family", "model", "gpu", "num_gpus", "global_batch")
                training = (*(row.text(column) for column in columns), precision_of(row))
                is_complete = all(row.number(name) for name in NEEDED if name != "gpu")
                is_whole_model = "LoRA" not in row.text("task")
                if row.text("source_family") in sources and is_complete and is_whole_model and training not in seen:
                    seen.add(training)
                    yield row


def place(row: RunRow, *, for_framework: bool) -> tuple[int | None, Layout] | None:
    """Return the place of the author's degrees in the plan, None if they are not listed, and the author's layout."""
    software = software_of(row)
    workload, machine, chosen = model_of(row), cluster_of(row), layout_of(row, software)
    if workload is None or machine is None or chosen is None:
        return None
    cluster, shares = machine
    held_out = shipped_without(row.text("source_family"))
    calibration, constants = held_out or (shipped(), MemoryConstants())
    context = SearchContext(
        spec=TrainingSpec(
            workload=workload, cluster=cluster, global_batch=row.whole("global_batch"), seq=row.whole("seq_len")
        ),
        precision=precision_of(row),
        matmul_share=shares,
        software=software,
        calibration=calibration,
        memory=MemoryCalibration(constants=constants),
        target=NVIDIA.get(row.text("source_family"), "") if for_framework else "",
    )
    try:
        listed = plan(context, num_layouts=NUM_LAYOUTS).layouts
    except InputError:
        return None, chosen
    listed_degrees = list(dict.fromkeys((one.layout.tp, one.layout.pp, one.layout.ep) for one in listed))
    degrees = (chosen.tp, chosen.pp, chosen.ep)
    return (listed_degrees.index(degrees) + 1 if degrees in listed_degrees else None), chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--source", action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--any-framework", action="store_true", help="also list layouts that the framework cannot run")
    arguments = parser.parse_args()
    results = []
    for row in trainings(arguments.runs, tuple(arguments.source or NVIDIA)):
        found = place(row, for_framework=not arguments.any_framework)
        if found is None:
            continue
        number, chosen = found
        name = " ".join(row.text(column) for column in ("source_family", "model", "gpu", "num_gpus", "precision"))
        results.append({"training": name, "layout": layout_text(chosen), "place": number})
        print(f"{number or '-':>4}  {name}: {layout_text(chosen)}", flush=True)
    shares = {
        f"in_first_{most}": sum(1 for one in results if one["place"] and one["place"] <= most) / len(results)
        for most in (1, 5, 10)
    }
    print(len(results), "trainings;", ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"trainings": results, **shares}, indent=1) + "\n")


if __name__ == "__main__":
    main()
