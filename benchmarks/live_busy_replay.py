"""Slow ranks on a busy host, replayed: are they named, or other programs in their place, and the reverse?

    PYTHONPATH=src python benchmarks/live_busy_replay.py [--seeds 10] [--out FILE]

Four ranks make steps of 150 ms on a host whose cores other programs keep busy. As four gloo ranks did on two cores at a
load of 12, each waits for a core for 10 ms per step, half of it in threads that nothing waits for; the other half
delays the step (gamma, shape 0.5: exposed waits then have a spread of 7 ms, as there). The load wanders for all ranks
alike (a factor with a spread of 20 %, correlated over 500 steps). A step ends when the last rank has computed and the
exchange of 3 ms is over; the others wait for it, which is timed once in 13 steps. From step 500 on something is wrong,
see `CASES`. The diagnosis of `flatout watch` looks every 7 steps, about once per second. What is made up here is the
noise, not the heartbeats: they are written by the code that runs inside a job.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from kept_result import keep
from live_replay import NS, Clock, Rank

from flatout.inside.liveness import beat as inside_beat
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.watch.diagnosis import live
from flatout.watch.diagnosis.live import LiveDiagnosis

NUM_RANKS, SLOW, AT, NUM_STEPS = 4, 2, 500, 1600
STEP_S, EXCHANGE_S, LOOK_EVERY, EXCHANGE_EVERY = 0.15, 0.003, 7, 13
CORE_WAIT_S, SHAPE, LOAD_SPREAD, LOAD_STEPS = 0.005, 0.5, 0.2, 500
# What is wrong, and the right answers at the end: cause and ranks. On a loaded core without waits (another program on
# the core's other thread, or on the memory's bus) nothing tells other programs from slower work.
CASES: dict[str, tuple[str | None, tuple[int, ...]]] = {
    "nothing": (None, ()),
    "one rank computes 5 % longer": ("late_rank", (SLOW,)),
    "one rank computes 10 % longer": ("late_rank", (SLOW,)),
    "one rank waits for a core, 10 %": ("noisy_neighbour", (SLOW,)),
    "all ranks wait for cores, 20 %": ("noisy_neighbour", ()),
    "all ranks compute 10 % longer": ("unknown", ()),
}


def times(case: str, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return how long each rank computes in each step, waits for a core included, and these waits."""
    num = (NUM_STEPS, NUM_RANKS)
    wander = np.zeros(NUM_STEPS)
    keeps = 1 - 1 / LOAD_STEPS
    shocks = generator.normal(0, LOAD_SPREAD * np.sqrt(1 - keeps**2), NUM_STEPS)
    for step in range(1, NUM_STEPS):
        wander[step] = keeps * wander[step - 1] + shocks[step]
    load = np.exp(wander)[:, None]
    core_waits, of_other_threads = generator.gamma(SHAPE, CORE_WAIT_S / SHAPE, (2, *num)) * load
    computes = (STEP_S - CORE_WAIT_S - EXCHANGE_S) * (1 + generator.normal(0, 0.004, num))
    if case == "all ranks wait for cores, 20 %":
        core_waits[AT:] += generator.gamma(SHAPE, 0.2 * STEP_S / SHAPE, (NUM_STEPS - AT, NUM_RANKS))
    elif case == "one rank waits for a core, 10 %":
        core_waits[AT:, SLOW] += generator.gamma(SHAPE, 0.1 * STEP_S / SHAPE, NUM_STEPS - AT)
    elif case == "all ranks compute 10 % longer":
        computes[AT:] += 0.1 * STEP_S
    elif case.startswith("one rank computes"):
        computes[AT:, SLOW] += (0.05 if " 5 " in case else 0.1) * STEP_S
    return computes + core_waits, core_waits + of_other_threads


def replayed(case: str, seed: int) -> list[dict[str, Any]]:
    """Replay a job, and return what was reported, with the step at which it was."""
    computes, core_waits = times(case, np.random.default_rng(seed))
    totals = np.cumsum(core_waits, axis=0)
    clock, reports, at_step = Clock(), [], 0
    inside_beat._now = clock
    live.core_wait_s = lambda pid: float(totals[at_step - 1, pid])
    live.resident_bytes = lambda pid: None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [Rank(folder, number, clock) for number in range(NUM_RANKS)]
        diagnosis = LiveDiagnosis(other_cores=lambda: 1.9, idle_cores=lambda: 0.0)
        reader = HeartbeatReader(folder)
        at_ns = clock.ns
        for at_step in range(1, NUM_STEPS + 1):
            of_ranks = computes[at_step - 1]
            total_ns = int((of_ranks.max() + EXCHANGE_S) * NS)
            for number, rank in enumerate(ranks):
                rank.steps(at_ns, 0, None, total_ns)
                if at_step % EXCHANGE_EVERY == 0:
                    exposed_ns = int((of_ranks.max() - of_ranks[number] + EXCHANGE_S) * NS)
                    rank.beat.exchanged(at_step, exposed_ns, per_step=1, num_ranks=NUM_RANKS)
            at_ns += total_ns
            if at_step % LOOK_EVERY:
                continue
            samples = [msgspec.structs.replace(each, pid=each.rank or 0) for each in ranks_of(reader.read())]
            reports += [
                {"at": at_step, "cause": finding.cause, "ranks": finding.ranks, "end": finding.last_step}
                for finding in diagnosis.look(samples, at_ns / NS)
            ]
        reader.close()
    return reports


def judged(case: str, of_seeds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Count what was reported first and last, and in how many steps the right answer came."""
    cause, ranks = CASES[case]

    def said(report: dict[str, Any] | None) -> str:
        return "nothing" if report is None else " ".join([report["cause"], *map(str, report["ranks"])])

    begun = [[report for report in reports if report["end"] is None] for reports in of_seeds]
    right = [
        next(
            (one["at"] - AT for one in reports if one["at"] > AT and (one["cause"], one["ranks"]) == (cause, ranks)),
            None,
        )
        for reports in begun
    ]
    delays = sorted(each for each in right if each is not None)
    return {
        "first": dict(Counter(said(reports[0] if reports else None) for reports in begun)),
        "last": dict(Counter(said(reports[-1] if reports else None) for reports in begun)),
        "num_right": len(delays) if cause is not None else sum(not reports for reports in begun),
        "median_steps_to_right": delays[len(delays) // 2] if delays else None,
        "most_reports_of_a_job": max(map(len, begun)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    cases = {}
    for case in CASES:
        cases[case] = judged(case, [replayed(case, 3000 + seed) for seed in range(arguments.seeds)])
        print(case, json.dumps(cases[case]), flush=True)
    keep(
        {"jobs_per_case": arguments.seeds, "step_ms": 1e3 * STEP_S, "begins_at_step": AT, "cases": cases}, arguments.out
    )


if __name__ == "__main__":
    main()
