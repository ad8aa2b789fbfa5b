"""How often the rule of `flatout doctor` and `flatout bench` for peers is wrong among healthy ones, and what it finds.

    python benchmarks/peer_false_alarms.py [--groups 10000] > benchmarks/results/peer_false_alarms.json

Groups of peers are drawn whose values scatter around 100: normally, and with heavier tails (Student's t with 4 degrees
of freedom, scaled to the same standard deviation; and log-normally). An alarm is a group in which any peer is called an
outlier. In the second part, one of the peers is slow, and the others scatter normally by 1 %: how often it is found.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable

import numpy as np

from flatout.doctor.peers import outliers

SHARE = 0.05  # as for clocks, and for what bench compares
NUM_PEERS = (4, 8, 16, 64)
SCATTERS = (0.01, 0.02, 0.03, 0.05)
SLOW = (0.07, 0.10, 0.15)
Draw = Callable[[np.random.Generator, int, float], "np.ndarray[tuple[int], np.dtype[np.float64]]"]


def normal(random: np.random.Generator, count: int, scatter: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 100 * (1 + scatter * random.standard_normal(count))


def heavy(random: np.random.Generator, count: int, scatter: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 100 * (1 + scatter * random.standard_t(4, count) / math.sqrt(2))  # its variance is 4 / (4 - 2)


def skewed(random: np.random.Generator, count: int, scatter: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 100 * np.exp(scatter * random.standard_normal(count))


DRAWS: dict[str, Draw] = {"normal": normal, "heavy tails": heavy, "log-normal": skewed}


def alarms(draw: Draw, num_peers: int, scatter: float, groups: int) -> float:
    random = np.random.default_rng([num_peers, round(scatter * 1000)])
    wrong = sum(bool(outliers(dict(enumerate(draw(random, num_peers, scatter))), share=SHARE)) for _ in range(groups))
    return wrong / groups


def found(num_peers: int, slow: float, groups: int) -> float:
    random = np.random.default_rng([num_peers, round(slow * 1000), 1])
    num = 0
    for _ in range(groups):
        values = dict(enumerate(normal(random, num_peers, 0.01)))
        values[0] *= 1 - slow
        num += 0 in outliers(values, share=SHARE)
    return num / groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    groups = parser.parse_args().groups
    result = {
        "groups": groups,
        "share": SHARE,
        "false_alarms": [
            {"values": name, "peers": peers, "scatter": scatter, "rate": alarms(draw, peers, scatter, groups)}
            for name, draw in DRAWS.items()
            for peers in NUM_PEERS
            for scatter in SCATTERS
        ],
        "found": [
            {"peers": peers, "slow": slow, "rate": found(peers, slow, groups)} for peers in NUM_PEERS for slow in SLOW
        ],
    }
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
