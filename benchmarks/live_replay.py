"""A day of a job's steps, replayed through the heartbeats at over 1,000 times its speed: how many false findings?

    PYTHONPATH=src python benchmarks/live_replay.py [--days 3] [--out FILE]

Four ranks are written step by step with the code that runs inside a job (288,000 steps of 0.3 s a day), with the noise
of `live_diagnosis.py`: correlated noise of 1.2 %, 2 % of the steps 1.3 to 2.5 times as long, a wander of 1 % per day,
a checkpoint each 1,000 steps and an evaluation each 5,000. A tenth of each step waits for a batch, and the exchange of
gradients is timed once in 13 steps with a spread of 30 %. The whole diagnosis of `flatout watch` looks at the
heartbeats every 15 s of the job's time. Nothing is wrong with the job, so every finding is false.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from kept_result import keep
from live_diagnosis import CHECKPOINT_EVERY, STEP_S, STEPS_PER_DAY, page_hinkley_alarms, step_times, threshold_alarms

from flatout.inside.liveness import beat as inside_beat
from flatout.inside.liveness.beat import CHECKPOINT, DATA, EVALUATION, Beat
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.watch.diagnosis.live import LiveDiagnosis
from flatout.watch.diagnosis.news import News

NUM_RANKS, LOOK_EVERY, EVALUATION_EVERY, EXCHANGE_EVERY = 4, 50, 5000, 13
DATA_SHARE, EXPOSED_S, EXPOSED_SPREAD = 0.1, 0.02, 0.3
NS = 1_000_000_000


class Clock:
    ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.ns


class Rank:
    """A rank whose heartbeat this process writes."""

    def __init__(self, folder: Path, number: int, clock: Clock) -> None:
        own = folder / f"of-{number}"
        own.mkdir()
        self.beat, self.clock = Beat(own), clock
        self.beat.is_rank(number, NUM_RANKS)
        (own / f"beat-{self.beat.name}").rename(folder / f"beat-{os.uname().nodename}-{number}")

    def steps(self, began_ns: int, data_ns: int, away: tuple[int, int] | None, total_ns: int) -> None:
        """Make a step that waits for a batch first, and spends `away` (phase, ns) of it in a checkpoint."""
        self.clock.ns = began_ns
        for phase, spent_ns in ((DATA, data_ns), *((away,) if away is not None else ())):
            before = self.beat.enter(phase)
            self.clock.ns += spent_ns
            self.beat.leave(before)
        self.clock.ns = began_ns + total_ns
        self.beat.stepped()


def replayed(seed: int, num_steps: int) -> dict[str, Any]:
    """Replay a day, and return what was found in it."""
    generator = np.random.default_rng(seed)
    times = step_times(num_steps, generator)
    waits = DATA_SHARE * STEP_S * np.exp(generator.normal(0, 0.2, (num_steps, NUM_RANKS)))
    exposed = EXPOSED_S * np.exp(generator.normal(0, EXPOSED_SPREAD, (num_steps, NUM_RANKS)))
    clock, news = Clock(), News()
    inside_beat._now = clock
    findings = []
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [Rank(folder, number, clock) for number in range(NUM_RANKS)]
        reader, diagnosis = HeartbeatReader(folder), LiveDiagnosis()
        at_ns = clock.ns
        for step in range(1, num_steps + 1):
            total_ns = int(times[step - 1] * NS)
            away = None
            if (step - 1) % CHECKPOINT_EVERY == 0:  # `step_times` makes these steps longer
                away = CHECKPOINT, total_ns - int(STEP_S * NS)
            elif step % EVALUATION_EVERY == 0:
                away, total_ns = (EVALUATION, 30 * NS), total_ns + 30 * NS
            for number, rank in enumerate(ranks):
                rank.steps(at_ns, int(waits[step - 1, number] * NS), away, total_ns)
                if step % EXCHANGE_EVERY == 0:
                    rank.beat.exchanged(step, int(exposed[step - 1, number] * NS), per_step=1, num_ranks=NUM_RANKS)
            at_ns += total_ns
            if step % LOOK_EVERY == 0:
                diagnosis.look(ranks_of(reader.read()), at_ns / NS)
                findings += news.of(diagnosis.findings, step)
        reader.close()
    took_s = time.perf_counter() - began_s
    return {
        "seed": seed,
        "job_hours": round(float(times.sum()) / 3600, 1),
        "speed": round(float(times.sum()) / took_s),
        "false_findings": len({finding.first_step for finding in findings}),
        "causes": sorted({finding.cause for finding in findings}),
        "page_hinkley": bool(page_hinkley_alarms(times)),
        "fixed_threshold": bool(threshold_alarms(times)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS_PER_DAY, help="steps of a day")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    days = []
    for day in range(arguments.days):
        days.append(replayed(2000 + day, arguments.steps))
        print(json.dumps(days[-1]), flush=True)
    load = round(os.getloadavg()[0], 1)
    keep({"ranks": NUM_RANKS, "steps_a_day": arguments.steps, "load_1min": load, "days": days}, arguments.out)


if __name__ == "__main__":
    main()
