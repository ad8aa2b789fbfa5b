"""The whole loop on an emulated slow network: a tuning, and a slow pair that `flatout bench` names.

    python benchmarks/slow_network_loop.py tune --out FILE [--budget 150] [--mbit 100]
    python benchmarks/slow_network_loop.py pair --out FILE [--mbit 200]

Ranks run in network namespaces of this machine, each with a link of a given rate (`tests/slow_network`). `tune` tunes a
DDP job of two ranks whose gradients take most of a step, with `--allow rounding`: what the verdict says is held against
two longer starts, untouched and with the accepted changes, timed by the lines that the job prints. `pair` measures all
pairs of four ranks three times: as they are, with one node's link at half the rate, and with the path between two nodes
at a third of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.cabled_nodes import sh
from tests.slow_network.network import LINK, SlowNetwork, slow_network

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "slow_network"
LONGER_STEPS, WARMUP_STEPS = 60, 10
PORT = 29_659


def job(network: SlowNetwork, num_steps: int) -> list[str]:
    """Return the command that trains with a rank on each node."""
    nodes = [f"{node.holder.pid}={node.address}" for node in network.nodes]
    training = [str(PROGRAMS / "training.py"), "--mib", "2", "--steps", str(num_steps)]
    return [sys.executable, str(PROGRAMS / "launch.py"), *nodes, "--", *training]


def tune(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    out = folder / "tuning"
    with slow_network(folder, num_nodes=2, bits_per_s=options.mbit * 1e6) as network:
        words = ["tune", "--out", str(out), "--budget", f"{options.budget}s", "--allow", "rounding", "--no-history"]
        began = time.monotonic()
        tuned = flatout([*words, "--", *job(network, 100_000)], folder)
        took_s = time.monotonic() - began
        if not (out / "tuning.json").exists():
            return {"code": tuned.returncode, "error": tuned.stderr[-2000:]}
        report = json.loads((out / "tuning.json").read_text())
        kept = ("verdict", "speedup", "interval", "num_trials", "ended_by")
        row = {"code": tuned.returncode, "took_s": round(took_s, 1)} | {name: report[name] for name in kept}
        row["changes"] = [change["name"] for change in report["changes"]]
        untouched_s = median_step_s(job(network, LONGER_STEPS))
        with_changes_s = None
        if row["changes"]:
            run = [sys.executable, "-m", "flatout", "run", "--on-regression", "off"]
            with_changes_s = median_step_s(
                [*run, "--config", str(out / "tuned.toml"), "--", *job(network, LONGER_STEPS)]
            )
        row["longer"] = {"untouched_s": untouched_s, "tuned_s": with_changes_s}
        row["tried"] = [(one["name"], one["outcome"], one["screened_speedup"]) for one in report["tried"]]
    return row


def median_step_s(command: list[str]) -> float | None:
    """Return the median time between the lines of rank 0, which prints one per step; None if it printed too few."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    seen: dict[str, float] = {}
    for line in process.stdout:
        if line.startswith("step "):
            seen.setdefault(line.split()[1], time.monotonic())  # the first rank that says it
    process.wait()
    times = list(seen.values())[WARMUP_STEPS:]
    steps_s = sorted(later - earlier for earlier, later in pairwise(times))
    return round(steps_s[len(steps_s) // 2], 5) if steps_s else None


def pair(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    rate = options.mbit * 1e6
    found: dict[str, Any] = {}
    with slow_network(folder, num_nodes=4, bits_per_s=rate) as network:
        found["as they are"] = peers(network, folder / "plain.json")
        limit_link(network, 2, rate / 2)
        found["node 2 at half the rate"] = peers(network, folder / "node.json")
        limit_link(network, 2, rate)
        limit_path(network, 0, 1, rate, rate / 3)
        limit_path(network, 1, 0, rate, rate / 3)
        found["nodes 0 and 1 at a third"] = peers(network, folder / "pair.json")
    return found


def limit_link(network: SlowNetwork, number: int, bits_per_s: float) -> None:
    limit = ["rate", f"{bits_per_s:.0f}bit", "burst", "128000", "latency", "50ms"]
    sh(*network.nodes[number].inside, "tc", "qdisc", "replace", "dev", LINK, "root", "tbf", *limit)


def limit_path(network: SlowNetwork, number: int, other: int, rate: float, slow: float) -> None:
    """Limit what a node sends to one other node."""
    tc = [*network.nodes[number].inside, "tc"]
    device = ["dev", LINK]
    sh(*tc, "qdisc", "replace", *device, "root", "handle", "1:", "htb", "default", "1")
    for name, bits_per_s in (("1:1", rate), ("1:2", slow)):
        sh(*tc, "class", "add", *device, "parent", "1:", "classid", name, "htb", "rate", f"{bits_per_s:.0f}bit")
    address = f"{network.nodes[other].address}/32"
    match = ["u32", "match", "ip", "dst", address, "flowid", "1:2"]
    sh(*tc, "filter", "add", *device, "parent", "1:", "protocol", "ip", "prio", "1", *match)


def peers(network: SlowNetwork, out: Path) -> dict[str, Any]:
    """Measure all pairs, and return their rates and what is named."""
    size = str(len(network.nodes))
    started = []
    for rank, node in enumerate(network.nodes):
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": "1"}
        meeting = {"MASTER_ADDR": network.nodes[0].address, "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "flatout", "bench", "--only", "pair_send", "--out", str(out), "--json"]
        log = out.with_suffix(f".{rank}.log")
        started.append(node.start(words, log, **place, **meeting, PYTHONPATH=environment()["PYTHONPATH"]))
    codes = [process.wait(300) for process in started]
    if not out.exists():
        return {"codes": codes, "error": out.with_suffix(".0.log").read_text(errors="replace")[-2000:]}
    result = json.loads(out.read_text())
    return {"codes": codes, "result": result}


def flatout(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flatout", *words]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {"tune": tune, "pair": pair}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=int, default=150, help="seconds of the tuning")
    parser.add_argument("--mbit", type=float, default=100.0, help="rate of each link, in Mbit/s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = PARTS[options.part](Path(folder), options)
    kept = {"part": options.part, "mbit": options.mbit, "cores": os.cpu_count()} | found
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(kept)[:3000])


if __name__ == "__main__":
    main()
