"""Which rules of the policy `flatout` hold on histories that they were not chosen on.

    python benchmarks/schedule_sweep.py FOLDER [--rules NAME=VALUE[,NAME=VALUE] ...] [--jobs 800] [--out FILE]
    python benchmarks/schedule_sweep.py FOLDER --set held-out --draws 3 --jobs 800 [--out FILE]

FOLDER holds philly.csv.gz (Sia's extract) and alibaba2023_openb_pod_list_default.csv.gz. Each history is a cut of one
of them, or is made here from a distribution, and is replayed at several loads: the times between submissions are
multiplied by one number, so that the work submitted is `load` times what the cluster can do in the time. Each set of
rules is compared with plain policies on each history, and the choice among them is cross-validated: it is made on all
histories but one, for each of them, by the mean among those whose median is at most twice that of LAS. `--set` takes
other histories of the same kinds (`schedule_histories.py`). With `--draws` each history is replayed several times with
submissions shifted by up to a minute, and a row has the means: single replays of a few hundred jobs differ by several
per cent.

Checkpoints are written every 1,800 s of work, and a start after a stop takes 180 s: what `flatout schedule replay`
assumes. Starved is who waits for more than 14 days without interruption.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.schedule_histories import DAY, HOUR, SETS, History, histories, job_of

from flatout.schedule.cluster import uniform
from flatout.schedule.engine import Simulation
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.measures import measure
from flatout.schedule.policies.default import Default
from flatout.schedule.policies.names import make

LOADS = (0.7, 1.0, 1.4, 2.0)
MOST_MEDIAN = 2.0
PLAIN = ("las", "srtf", "srtf-oracle", "qssf", "easy")
KEPT = (
    *("jct_mean_s", "jct_p50_s", "jct_p99_s", "longest_wait_s", "num_starved", "makespan_s"),
    *("goodput", "preemptions", "lost_gpu_hours", "restart_gpu_hours", "useful_gpu_hours"),
)
Row = dict[str, Any]


def at_load(history: History, load: float) -> list[ClusterJob]:
    """Return the jobs with the times between submissions multiplied so that the load is as wished."""
    jobs = sorted(history.jobs, key=lambda job: job.submit_s)
    work_gpu_s = sum(job.num_gpus * job.gpu_share * job.duration_s for job in jobs)
    first_s, span_s = jobs[0].submit_s, jobs[-1].submit_s - jobs[0].submit_s
    wished_span_s = work_gpu_s / (history.num_nodes * 8 * load)
    factor = wished_span_s / span_s
    return [msgspec.structs.replace(job, submit_s=(job.submit_s - first_s) * factor) for job in jobs]


def rules(text: str) -> type[Default]:
    """Return the policy with other rules: `quantum_s=3600,margin=1`."""
    changed: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not hasattr(Default, name):
            raise SystemExit(f"the policy has no rule {name}")
        changed[name] = type(getattr(Default, name))(float(value))
    return type("Changed", (Default,), changed)


def run(history: History, load: float, policy: str, num_draws: int = 1) -> Row:
    """Replay one history at one load; `policy` is the name of a policy, or changed rules of `flatout`.

    The values of a row are means over the draws, but `longest_wait_s` and `num_starved` are the largest.
    """
    rows = [_replay(history, load, policy, number) for number in range(num_draws)]
    row: Row = {"history": history.name, "load": load, "policy": policy}
    for name in ("seconds", *KEPT):
        values = [one[name] for one in rows]
        row[name] = max(values) if name in ("longest_wait_s", "num_starved") else sum(values) / num_draws
    if num_draws > 1:
        row["jct_means_s"] = [one["jct_mean_s"] for one in rows]
    return row


def _replay(history: History, load: float, policy: str, number: int) -> Row:
    jobs, cluster = shifted(at_load(history, load), number), uniform(history.num_nodes, 8)
    chosen = rules(policy)() if "=" in policy else make(policy, jobs, cluster)
    began = time.perf_counter()
    result = Simulation(jobs, cluster, chosen, assumptions=Assumptions()).run()
    seconds = time.perf_counter() - began
    measured = measure(result, "", seconds=seconds, starved_after_s=14 * DAY)
    return {"seconds": round(seconds, 2)} | {name: getattr(measured, name) for name in KEPT}


def shifted(jobs: Sequence[ClusterJob], number: int) -> list[ClusterJob]:
    """Return the jobs submitted up to a minute later, at random; draw 0 leaves them as they are."""
    if not number:
        return list(jobs)
    draw = random.Random(number)
    later = [msgspec.structs.replace(job, submit_s=job.submit_s + draw.uniform(0, 60)) for job in jobs]
    return sorted(later, key=lambda job: job.submit_s)


def small_cases(policies: Sequence[str], count: int = 40) -> Row:
    """Return the mean completion time of each policy over that of the best order, on small cases.

    Six jobs that are all submitted at once on one node of four GPUs: the best of all orders in which jobs start,
    without preemption, each as soon as it fits.
    """
    totals: dict[str, list[float]] = {}
    for seed in range(count):
        draw = random.Random(seed)
        jobs = [job_of(0.0, draw.choice([1, 1, 2, 3, 4]), draw.lognormvariate(8, 1.5), f"u{n}") for n in range(6)]
        best = min(_mean_in_order(jobs, order) for order in itertools.permutations(range(len(jobs))))
        cluster = uniform(1, 4)
        for policy in policies:
            chosen = rules(policy)() if "=" in policy else make(policy, jobs, cluster)
            finish_s = Simulation(jobs, cluster, chosen, assumptions=Assumptions()).run().finish_s
            totals.setdefault(policy, []).append(sum(finish_s) / len(jobs) / best)
    return {policy: float(np.mean(ratios_of)) for policy, ratios_of in totals.items()}


def _mean_in_order(jobs: Sequence[ClusterJob], order: Sequence[int]) -> float:
    """Return the mean completion time if jobs start in this order, each as soon as it and those before it fit."""
    running: list[tuple[float, int]] = []  # end, GPUs
    now, free, total = 0.0, 4, 0.0
    for number in order:
        job = jobs[number]
        running.sort()
        while free < job.num_gpus:
            end, freed = running.pop(0)
            now = max(now, end)
            free += freed
        free -= job.num_gpus
        running.append((now + job.duration_s, job.num_gpus))
        total += now + job.duration_s
    return total / len(jobs)


def ratios(rows: Sequence[Row], policies: Sequence[str]) -> list[Row]:
    """Return, for each history and load, each policy's mean completion time over that of the better of LAS and SRTF.

    `median` has the median completion times over that of LAS.
    """
    of: dict[tuple[str, float], dict[str, Row]] = {}
    for row in rows:
        of.setdefault((row["history"], row["load"]), {})[row["policy"]] = row
    table = []
    for (history, load), by_policy in of.items():
        best = min(by_policy["las"]["jct_mean_s"], by_policy["srtf"]["jct_mean_s"])
        line: Row = {"history": history, "load": load}
        line |= {name: by_policy[name]["jct_mean_s"] / best for name in policies if name in by_policy}
        las_median_s = by_policy["las"]["jct_p50_s"]
        line["median"] = {name: row["jct_p50_s"] / las_median_s for name, row in by_policy.items()}
        table.append(line)
    return table


def chosen_without(table: Sequence[Row], history: str, candidates: Sequence[str]) -> str:
    """Return the candidate with the lowest mean ratio (geometric) on all other histories.

    Its median completion time must not be more than `MOST_MEDIAN` times that of LAS on any of them.
    """
    others = [line for line in table if line["history"] != history and all(name in line for name in candidates)]
    fair = [name for name in candidates if all(line["median"][name] <= MOST_MEDIAN for line in others)]
    return min(fair, key=lambda name: sum(math.log(line[name]) for line in others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rules", action="append", default=[])
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--load", action="append", type=float)
    parser.add_argument("--jobs", type=int, default=2500)
    parser.add_argument("--history", action="append")
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--from", dest="former", type=Path, help="rows that need not be run again")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    policies = [*PLAIN, *(given.policy or ["flatout"]), *given.rules]
    rows: list[Row] = json.loads(given.former.read_text())["rows"] if given.former and given.former.exists() else []
    done = {(row["history"], row["load"], row["policy"]) for row in rows}
    for history in histories(given.folder, given.jobs, SETS[given.set]):
        if given.history and history.name not in given.history:
            continue
        for load in given.load or LOADS:
            missing = [policy for policy in policies if (history.name, load, policy) not in done]
            rows += [run(history, load, policy, given.draws) for policy in missing]
            if given.out:
                given.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
            print(history.name, load, file=sys.stderr, flush=True)
    table = ratios(rows, policies)
    candidates = [name for name in policies if name == "flatout" or "=" in name]
    crossed = [
        {"history": history, "chosen": chosen_without(table, history, candidates)}
        for history in dict.fromkeys(line["history"] for line in table)
    ]
    small = small_cases(policies)
    result = {"rows": rows, "cross_validation": crossed, "small_cases": small}
    if given.out:
        given.out.write_text(as_json(result) + "\n")
    show(table, rows, policies)
    for line in crossed:
        print(f"{line['history']:22s}chosen on the others: {line['chosen']}")
    print("six jobs on four GPUs, over the best order:", {name: round(value, 3) for name, value in small.items()})


def as_json(result: Row) -> str:
    """Return the result as JSON with a line for each row, and numbers of five digits."""
    short = json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.5g}"))
    parts = []
    for name, value in short.items():
        lines = ",\n".join(json.dumps(line) for line in value) if isinstance(value, list) else json.dumps(value)
        parts.append(f'"{name}": ' + (f"[\n{lines}\n]" if isinstance(value, list) else lines))
    return "{\n" + ",\n".join(parts) + "\n}"


def show(table: Sequence[Row], rows: Sequence[Row], policies: Sequence[str]) -> None:
    """Print the mean completion times over the better of LAS and SRTF, and what each policy costs."""
    for number, name in enumerate(policies):
        print(f"[{number}] {name}")
    print(f"{'history':22s}{'load':>5s}" + "".join(f"{f'[{number}]':>8s}" for number in range(len(policies))))
    for line in table:
        cells = "".join(f"{float(line.get(name, math.nan)):8.3f}" for name in policies)
        print(f"{line['history']:22s}{line['load']:5.1f}{cells}")
    for name in policies:
        own = [row for row in rows if row["policy"] == name]
        of_table = [line[name] for line in table if name in line]
        mean = math.exp(sum(math.log(value) for value in of_table) / len(of_table))
        lost = sum(row["lost_gpu_hours"] + row["restart_gpu_hours"] for row in own)
        useful = sum(row["useful_gpu_hours"] for row in own)
        print(
            f"{name:44s} mean {mean:.3f} worst {max(of_table):.3f} starved {sum(row['num_starved'] for row in own):5d}"
            f" longest {max(row['longest_wait_s'] for row in own) / DAY:6.1f} d lost {lost / useful:6.2%}"
            f" makespan {sum(row['makespan_s'] for row in own) / DAY:7.0f} d"
            f" goodput {np.mean([row['goodput'] for row in own]):.3f}"
            f" p99 {np.exp(np.mean([np.log(row['jct_p99_s']) for row in own])) / HOUR:7.1f} h"
            f" {sum(row['seconds'] for row in own):5.0f} s"
        )


if __name__ == "__main__":
    main()
