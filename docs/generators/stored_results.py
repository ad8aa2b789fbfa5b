"""What scripts in `benchmarks/` measured, as they stored it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from generators.markdown import share, table
from generators.repository import ROOT


def plan_accuracy() -> str:
    """Return what `flatout plan evaluate` said of the published runs: errors by source, and regrets by group."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/plan_evaluation.json").read_bytes())
    return f"{_plan_errors(stored)}\n\n{_plan_regrets(stored)}"


def _plan_errors(stored: Any) -> str:
    keys = ("mape", "mape_calibrated", "mape_calibrated_random")
    rows = []
    for source in stored["sources"]:
        called_safe = f"{source['out_of_memory_called_safe']} of {source['out_of_memory_rows']}"
        rows.append(
            [
                source["source"],
                str(source["rows"]),
                *(share(source[key]) for key in (*keys, "mape_in_sample", "bias", "coverage_90", "memory_mape")),
                share(source["called_unsafe"]),
                share(source["called_unsafe_as_read"]),
                called_safe if source["out_of_memory_rows"] else "-",
            ]
        )
    means = [share(stored[key]) for key in keys]
    of_memory = [share(stored[key]) for key in ("memory_mape", "called_unsafe", "called_unsafe_as_read")]
    rows.append(["all, sources weighed alike", "", *means, "", "", share(stored["coverage_90"]), *of_memory, ""])
    header = ["Source", "Rows", "Error", "Calibrated", "By random three", "By all its rows", "Bias", "In interval",
              "Memory error", "Called unsafe", "as read", "Out of memory, called safe"]  # fmt: skip
    return table(header, rows)


def _plan_regrets(stored: Any) -> str:
    rows = [
        [
            group["group"].split("|20")[0],
            str(group["n"]),
            *(share(group[f"regret_top{count}"]) for count in (1, 3, 5)),
            *(share(group[f"regret_top{count}_gated"]) for count in (1, 3, 5)),
        ]
        for group in stored["groups"]
    ]
    return table(["Group", "Layouts", "Best of 1", "Best of 3", "Best of 5", "Behind the gate: 1", "3", "5"], rows)


def plan_unseen() -> str:
    """Return the errors on the runs of `benchmarks/plan_unseen.csv`: of the first prediction, and now."""
    results = ROOT / "benchmarks/results"
    first, now = (
        msgspec.json.decode((results / name).read_bytes())["kinds"]
        for name in ("plan_unseen_first.json", "plan_unseen.json")
    )
    keys = ("mape", "inside_90", "memory_mape", "called_unsafe")
    rows = [
        [kind, str(now[kind]["rows"]), *(share(each.get(kind, {}).get(key)) for key in keys for each in (first, now))]
        for kind in now
    ]
    header = ["Rows", "Number", "Error, first", "now", "In interval, first", "now", "Memory error, first", "now",
              "Called unsafe, first", "now"]  # fmt: skip
    return table(header, rows)


def plan_calculon() -> str:
    """Return the errors of Calculon and Flatout on the same rows, which `benchmarks/plan_calculon.py` stored."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/plan_calculon.json").read_bytes())
    keys = ("calculon_mape", "calculon_bias", "flatout_mape", "flatout_bias")
    rows = [[one["source"], str(one["rows"]), *(share(one[key]) for key in keys)] for one in stored["errors"]]
    rates = stored["rates"]
    return (
        table(["Source", "Rows", "Calculon", "its bias", "Flatout", "its bias"], rows)
        + f"\n\nOn layouts of GPT3-175B on 4,096 A100 that both can express, one process, by CPU time: Calculon "
        f"{rates['calculon_per_cpu_s']['median']:,.0f} a second, Flatout {rates['flatout_per_cpu_s']['median']:,.0f}."
    )


def serving_plan_accuracy() -> str:
    """Return the errors on published serving results, each source by constants fitted to all others."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/serving_plan.json").read_bytes())
    rows = [
        [
            one["source"],
            one["models"],
            str(one["num_results"]),
            *(share(one[key]) for key in ("mean_error", "bias", "within_interval", "ttft_error", "itl_error")),
        ]
        for one in stored["sources"]
    ]
    return table(["Source", "Models", "Results", "Error", "Bias", "In interval", "TTFT error", "ITL error"], rows)


def peer_alarms() -> str:
    """Return what `benchmarks/peer_false_alarms.py` found: false alarms of equal peers, and slow ones that it named."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/peer_false_alarms.json").read_bytes())
    return f"{_false_alarms(stored['false_alarms'])}\n\n{_slow_peers(stored['found'])}"


def _false_alarms(results: Any) -> str:
    rates = {(result["values"], result["peers"], result["scatter"]): result["rate"] for result in results}
    scatters = sorted({scatter for _, _, scatter in rates})
    kinds = list(dict.fromkeys((values, peers) for values, peers, _ in rates))
    rows = [
        [values, str(peers), *(f"{rates[values, peers, scatter] * 100:.1f} %" for scatter in scatters)]
        for values, peers in kinds
    ]
    return table(["Values", "Peers", *(f"alarms at {scatter * 100:g} % scatter" for scatter in scatters)], rows)


def _slow_peers(results: Any) -> str:
    rates = {(result["peers"], result["slow"]): result["rate"] for result in results}
    slowness = sorted({slow for _, slow in rates})
    nums_peers = dict.fromkeys(peers for peers, _ in rates)
    rows = [[str(peers), *(f"{rates[peers, slow] * 100:.0f} %" for slow in slowness)] for peers in nums_peers]
    return table(["Peers", *(f"{slow * 100:g} % slow is found" for slow in slowness)], rows)


GENERATORS: Mapping[str, Callable[[], str]] = {
    "plan_accuracy": plan_accuracy,
    "plan_unseen": plan_unseen,
    "plan_calculon": plan_calculon,
    "serving_plan_accuracy": serving_plan_accuracy,
    "peer_alarms": peer_alarms,
}
