"""Would draining on a sign have paid on Titan? The lives of its GPUs, replayed: signs, precision, and GPU-hours.

    PYTHONPATH=src python benchmarks/titan_drain.py gc_full.csv.gz [--out FILE]

The file is that of "GPU Lifetimes on Titan Supercomputer" (Ostrouchov et al., SC 2020, github.com/olcf/TitanGPULife):
one row for each time that a card spent in a slot, with the event that ended it. Each quarter from June 2014 to May
2019, every card in the machine is asked for signs: an event of this card in the last 180 days, one in this slot, its
place in the uppermost cage. An event within 30 days is a failure.

The rule is given what was known before the quarter that it decides on: the failure rate of cards with the sign so far.
Each policy is charged with what a stop costs a job of `JOB_GPUS` cards (see `expected_loss`): a drain by a planned stop
and the node's repair, a failure that no drain preceded by lost work, detection and a restart.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from kept_result import keep

from flatout.records.watch import FailureProbability
from flatout.watch.health.expected_loss import StopCosts, drain_cost

DAY_S = 86_400.0
HORIZON_DAYS, PRIOR_DAYS, STEP_DAYS = 30, 180, 90
FIRST, LAST = datetime(2014, 6, 1).timestamp(), datetime(2019, 5, 1).timestamp()
JOB_GPUS = 1024
COSTS = StopCosts(
    job_gpus=JOB_GPUS, node_gpus=1, checkpoint_interval_s=1800, save_s=0, restart_s=300, detect_s=60, repair_s=3600
)
FAILURE_H = (COSTS.checkpoint_interval_s / 2 + COSTS.detect_s + COSTS.restart_s) * JOB_GPUS / 3600 + 1
DRAIN_H = COSTS.restart_s * JOB_GPUS / 3600 + 1


class Life(NamedTuple):
    begin_s: float
    end_s: float
    slot: str


class Check(NamedTuple):
    """One card in one quarter."""

    quarter_s: float
    signs: frozenset[str]
    fails: bool


def checks_of(path: Path) -> list[Check]:
    lives: dict[str, list[Life]] = defaultdict(list)
    events: dict[str, list[float]] = defaultdict(list)
    of_slot: dict[str, list[float]] = defaultdict(list)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if not row["insert"] or not row["remove"]:
                continue
            begin_s, end_s = (datetime.fromisoformat(row[name]).timestamp() for name in ("insert", "remove"))
            lives[row["SN"]].append(Life(begin_s, end_s, row["location"]))
            if row["event"].strip():
                events[row["SN"]].append(end_s)
                of_slot[row["location"]].append(end_s)
    checks = []
    quarter_s = FIRST
    while quarter_s < LAST:
        for card, of_card in lives.items():
            life = next((each for each in of_card if each.begin_s <= quarter_s < each.end_s), None)
            if life is not None:
                checks.append(_check(quarter_s, life, events[card], of_slot[life.slot]))
        quarter_s += STEP_DAYS * DAY_S
    return checks


def _check(quarter_s: float, life: Life, events: list[float], of_slot: list[float]) -> Check:
    def before(times: list[float]) -> bool:
        return any(quarter_s - PRIOR_DAYS * DAY_S < time <= quarter_s for time in times)

    signs = {
        "earlier event of the card": before(events),
        "earlier event in the slot": before(of_slot),
        "uppermost cage": life.slot.split("-")[1].split("c")[1][:1] == "2",
    }
    fails = any(quarter_s < time <= quarter_s + HORIZON_DAYS * DAY_S for time in events)
    return Check(quarter_s, frozenset(name for name, is_on in signs.items() if is_on), fails)


def signs_of(checks: list[Check]) -> dict[str, Any]:
    num_failures = sum(check.fails for check in checks)
    rate = num_failures / len(checks)
    result = {}
    for sign in sorted({sign for check in checks for sign in check.signs}):
        flagged = [check for check in checks if sign in check.signs]
        hits = sum(check.fails for check in flagged)
        result[sign] = {
            "flagged": len(flagged),
            "precision": round(hits / len(flagged), 4),
            "recall": round(hits / num_failures, 4),
            "lift": round(hits / len(flagged) / rate, 1),
        }
    return result


def costs_of(checks: list[Check]) -> dict[str, Any]:
    """Return the GPU-hours of each policy. The first year only teaches the rule its rates."""
    seen: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    policies: dict[str, Callable[[Check], bool]] = {
        "never drain": lambda check: False,
        "drain after an event of the card": lambda check: "earlier event of the card" in check.signs,
        "drain on any sign": lambda check: bool(check.signs),
        "drain where it pays": lambda check: any(_pays(failed[sign], seen[sign]) for sign in check.signs),
    }
    totals = {name: Counter[str]() for name in policies}
    quarters = sorted({check.quarter_s for check in checks})
    for number, quarter_s in enumerate(quarters):
        of_quarter = [check for check in checks if check.quarter_s == quarter_s]
        for name, drains in policies.items() if number >= 4 else ():
            for check in of_quarter:
                is_drained = drains(check)
                totals[name]["drains"] += is_drained
                totals[name]["failures met"] += check.fails and not is_drained
        for check in of_quarter:
            for sign in check.signs:
                seen[sign] += 1
                failed[sign] += check.fails
    return {
        name: {**total, "gpu_hours": round(total["drains"] * DRAIN_H + total["failures met"] * FAILURE_H)}
        for name, total in totals.items()
    }


def _pays(num_failed: int, num_seen: int) -> bool:
    rate = num_failed / num_seen if num_seen else 0.0
    probability = FailureProbability(low=rate, typical=rate, high=rate, is_assumed=False, source="earlier quarters")
    return drain_cost(probability, COSTS).pays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lives", type=Path, metavar="gc_full.csv.gz")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    checks = checks_of(arguments.lives)
    num_failures = sum(check.fails for check in checks)
    keep(
        {
            "checks": len(checks),
            "base_rate": round(num_failures / len(checks), 5),
            "horizon_days": HORIZON_DAYS,
            "signs": signs_of(checks),
            "drain_costs_gpu_hours": round(DRAIN_H, 1),
            "failure_costs_gpu_hours": round(FAILURE_H, 1),
            "probability_from_which_a_drain_pays": round(DRAIN_H / FAILURE_H, 3),
            "policies_after_the_first_year": costs_of(checks),
        },
        arguments.out,
    )


if __name__ == "__main__":
    main()
