"""The open-loop client against queues whose mean wait is known: M/G/1 in virtual time.

    python benchmarks/serving_client.py [--requests 50000] [--seeds 5] [--out FILE]

Poisson arrivals at load 0.7 to one server with three laws of service times: fixed, exponential, and two values. The
client's mean wait is compared with Pollaczek and Khinchine's, and each request's wait with Lindley's recursion on the
same arrivals, which is exact. It computes only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kept_result import keep
from tests.serving.queues import (
    SingleServer,
    lindley_waits_s,
    pollaczek_khinchine_s,
    service_times,
    squared_variation,
)
from tests.serving.virtual_time import run_virtual

from flatout.serving.client import send_open_loop
from flatout.serving.load import Load, TracedLoad
from flatout.serving.requests import make_requests

LOAD = 0.7
MOST_ERROR = 0.05


def waits(law: str, count: int, seed: int) -> dict[str, Any]:
    load = Load(rates=(LOAD,), requests=count, seed=seed, prompt_tokens=1, output_tokens=1)
    requests = make_requests(TracedLoad(load=load, path=""), LOAD)
    service_s = service_times(law, 1.0, count, seed)
    answers = run_virtual(send_open_loop(requests, SingleServer(service_s), limit_s=1e9))
    own = [(answer.first_s or 0.0) - answer.due_s - service for answer, service in zip(answers, service_s, strict=True)]
    exact = lindley_waits_s([request.due_s for request in requests], service_s)
    theory_s = pollaczek_khinchine_s(LOAD, 1.0, squared_variation(law))
    return {
        "law": law,
        "seed": seed,
        "mean_wait_s": fmean(own),
        "theory_s": theory_s,
        "error": fmean(own) / theory_s - 1,
        "most_off_lindley_s": max(abs(one - other) for one, other in zip(own, exact, strict=True)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs = [
        waits(law, arguments.requests, seed)
        for law in ("fixed", "exponential", "two")
        for seed in range(arguments.seeds)
    ]
    by_law = {law: fmean(run["error"] for run in runs if run["law"] == law) for law in ("fixed", "exponential", "two")}
    result = {
        "schema": "flatout/benchmark-serving-client",
        "requests": arguments.requests,
        "load": LOAD,
        "mean_error": by_law,
        "runs": runs,
    }
    keep(result, arguments.out)
    return 0 if all(abs(error) <= MOST_ERROR for error in by_law.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
