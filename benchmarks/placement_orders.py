"""Compare the search for an order of eight ranks with all 40,320 orders, on every kind of network and many layouts.

    python benchmarks/placement_orders.py [--out benchmarks/results/placement_orders.json]

The search runs as for larger jobs (`tries_all=False`): for eight ranks, `flatout plan place` itself tries all orders.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import permutations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.placement.fabrics import exchanges, fabric

from flatout.placement.cost import costs
from flatout.placement.groups import Degrees
from flatout.placement.network import Network
from flatout.placement.search import best_order

ALTERNATING = (0, 1, 0, 1)
FABRICS = {
    "fat-tree, 4 nodes": fabric("fat-tree", 4, 2, leaves=ALTERNATING),
    "fat-tree 4 to 1, 4 nodes": fabric("fat-tree", 4, 2, leaves=ALTERNATING, oversubscription=4),
    "fat-tree 3 to 1, uneven leaves": fabric("fat-tree", 4, 2, leaves=(0, 1, 1, 1), oversubscription=3),
    "rail 2 to 1, 4 nodes": fabric("rail", 4, 2, leaves=ALTERNATING, oversubscription=2),
    "rail 3 to 1, 2 nodes": fabric("rail", 2, 4, leaves=(0, 1), oversubscription=3),
    "ring, 8 nodes": fabric("ring", 8, 1, shape=(8,)),
    "ring, 4 nodes": fabric("ring", 4, 2, shape=(4,)),
    "torus 2 x 4": fabric("torus", 8, 1, shape=(2, 4)),
    "torus 2 x 2": fabric("torus", 4, 2, shape=(2, 2)),
    "NVLink pairs, 2 nodes": fabric("fat-tree", 2, 4, leaves=(0, 1), nvlink_gpus=2),
    "NVLink over 2 nodes": fabric("fat-tree", 4, 2, leaves=ALTERNATING, nvlink_gpus=4, oversubscription=2),
}
LAYOUTS = (
    Degrees(tp=2, dp=4),
    Degrees(tp=4, dp=2),
    Degrees(tp=4, pp=2),
    Degrees(tp=2, dp=2, pp=2),
    Degrees(tp=2, pp=4),
    Degrees(cp=2, dp=2, pp=2),
    Degrees(tp=2, cp=2, dp=2),
    Degrees(dp=8, ep=4),
    Degrees(dp=4, pp=2, ep=2),
    Degrees(pp=8),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    every = np.array(list(permutations(range(8))))
    rows = [_row(name, degrees, every) for name in FABRICS for degrees in LAYOUTS]
    worse = [row for row in rows if row["over_best"] > 1e-9]
    print(f"{len(rows) - len(worse)} of {len(rows)} orders are as fast as the best of all {len(every):,}")
    for row in worse:
        print(f"  {row['fabric']}, {row['layout']}: {row['over_best']:.1%} slower")
    gains = [row["given_over_best"] for row in rows if row["given_over_best"] > 1e-9]
    print(f"the given order is slower in {len(gains)}, by {np.median(gains):.0%} in the median of these")
    if out is not None:
        out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def _row(name: str, degrees: Degrees, every: np.ndarray) -> dict[str, object]:
    network, sent = Network(FABRICS[name]), exchanges(degrees)
    began = time.perf_counter()
    found = best_order(network, sent, (degrees.tp, degrees.cp, degrees.dp, degrees.pp), tries_all=False)
    took_s = time.perf_counter() - began
    least = float(costs(network, sent, every).seconds.min())
    given_s, found_s = costs(network, sent, np.stack([np.arange(8), found])).seconds
    return {
        "fabric": name,
        "layout": " ".join(f"{key}={value}" for key, value in degrees._asdict().items() if value > 1),
        "given_over_best": float(given_s) / least - 1.0,
        "over_best": float(found_s) / least - 1.0,
        "search_s": round(took_s, 3),
    }


if __name__ == "__main__":
    main()
