"""Exchanges of gradients on an emulated slow network, as measured and as predicted.

Ranks run in network namespaces of this machine, each with a link of a given rate (`tests/slow_network`). Three parts:

- all-reduce: the curve is fitted to four sizes, and predicts the others;
- hooks: every compression between two nodes at 1 Gbit/s, its bytes and its time, beside the rule's prediction;
- ranks: 8-bit gradients by all-gather and by all-to-all among eight nodes at 100 Mbit/s (two cores cannot drive eight
  links of 1 Gbit/s).

    python benchmarks/slow_network_exchange.py --out build/slow_network_exchange.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.slow_network.network import slow_network
from tests.slow_network.ranks import run_ranks

from flatout.predict.collective_time import Link, collective_s, link_of
from flatout.predict.gradient_exchange import (
    MEASURED_RANGE,
    PLAIN,
    CollectiveCall,
    GradientExchange,
    exchange_of,
    int8_by_all_gather,
)
from flatout.probe.ceilings.fit import fitted
from flatout.tune.codec_times import codec_times

MIB = 1 << 20
PROGRAMS = Path(__file__).parent.parent / "tests" / "slow_network"
FITTED_MIB = (0.5, 2, 8, 32)
PREDICTED_MIB = (1, 4, 16, 64)
MATRIX_ROWS = 512  # and columns, of each of the gradients (tests/slow_network/hooks.py)
RANGE = (MEASURED_RANGE[0], 1.0, MEASURED_RANGE[1])
HOOKS = ("plain", "bf16", "fp16", "int8", "topk-1%", "topk-10%", "powersgd-1", "powersgd-2")


def measure(num_nodes: int, bits_per_s: float, words: list[object]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with slow_network(path, num_nodes=num_nodes, bits_per_s=bits_per_s) as network:
            return run_ranks(network, words, path, limit_s=600)


def all_reduce(calls: int) -> tuple[Link, list[dict[str, float]]]:
    """Return the link that four sizes show, and the measured and predicted seconds of four others."""
    sizes = [int(size * MIB) for size in sorted([*FITTED_MIB, *PREDICTED_MIB])]
    words = [f"all_reduce:{size}:{calls}" for size in sizes]
    times = measure(2, 1e9, [PROGRAMS / "collectives.py", *words])[0]
    known = [int(size * MIB) for size in FITTED_MIB]
    fit = fitted(known, [times[f"all_reduce:{size}"] for size in known])  # of two ranks the bus bytes are the size
    assert fit is not None
    link = link_of("all_reduce", fit[0], fit[1], 2)
    rows = []
    for size in (int(each * MIB) for each in PREDICTED_MIB):
        took_s, predicted_s = times[f"all_reduce:{size}"], collective_s(link, "all_reduce", size, 2)
        rows.append({"mib": size / MIB, "s": took_s, "predicted_s": predicted_s, "error": predicted_s / took_s - 1})
    return link, rows


def compared(
    ranks: list[dict[str, Any]], link: Link, num_bytes: int, codec_ns: dict[str, float] | None
) -> list[dict[str, Any]]:
    """Return each hook's bytes and seconds beside the prediction, from the time to compress without a network."""
    num_ranks = len(ranks)
    rows = []
    for name in ranks[0]:
        exchange = _exchange(name, num_bytes, num_ranks, codec_ns)
        sent = exchange.wire_bytes(num_ranks)
        took_s = max(rank[name]["s"] for rank in ranks)
        plain_s = max(rank["plain"]["s"] for rank in ranks)
        predicted_plain_s = exchange_of(PLAIN, num_bytes, num_ranks).link_s(link, num_ranks)
        link_s = exchange.link_s(link, num_ranks)
        least_s, predicted_s, most_s = (link_s + factor * exchange.codec_s for factor in RANGE)
        rows.append(
            {
                "hook": name,
                "bytes": max(rank[name]["bytes"] for rank in ranks),
                "predicted_bytes": sent,
                "s": took_s,
                "gain": plain_s / took_s,
                "predicted_gain": predicted_plain_s / predicted_s,
                "predicted_interval": [predicted_plain_s / most_s, predicted_plain_s / least_s],
            }
        )
    return rows


def _exchange(name: str, num_bytes: int, num_ranks: int, codec_ns: dict[str, float] | None) -> GradientExchange:
    if name == "int8-all-gather":
        return int8_by_all_gather(num_bytes, num_ranks)
    exchange = exchange_of(PLAIN if name == "plain" else name, num_bytes, num_ranks, "cpu", codec_ns)
    if not name.startswith("powersgd-"):
        return exchange
    # The rule's share is a prior for models with other parameters; these are square matrices of 1 MiB only.
    share = 2 * int(name.removeprefix("powersgd-")) / MATRIX_ROWS
    factor = CollectiveCall(operation="all_reduce", num_bytes=num_bytes * share / 2)
    return GradientExchange(calls=(factor, factor), codec_s=exchange.codec_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=7, help="of which the median is taken")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    of_two, of_eight = (codec_times("cpu", num_ranks=ranks, ranks_per_host=ranks) for ranks in (2, 8))
    link, rows = all_reduce(given.calls)
    hooks = measure(2, 1e9, [PROGRAMS / "hooks.py", 16, given.calls, *HOOKS])
    many = measure(8, 1e8, [PROGRAMS / "hooks.py", 4, given.calls, "plain", "bf16", "int8", "int8-all-gather"])
    slow = Link(latency_s=link.latency_s, bytes_per_s=link.bytes_per_s / 10)
    result = {
        "load_average": [round(load, 1) for load in os.getloadavg()],  # what else ran on this machine
        "link": {"latency_s": link.latency_s, "bytes_per_s": link.bytes_per_s},
        "all_reduce_2_nodes_1_gbit": rows,
        "codec_ns_2_ranks": of_two,
        "codec_ns_8_ranks": of_eight,
        "hooks_2_nodes_1_gbit_16_mib": compared(hooks, link, 16 * MIB, of_two),
        "hooks_8_nodes_100_mbit_4_mib": compared(many, slow, 4 * MIB, of_eight),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
