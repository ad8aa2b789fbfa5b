"""`flatout diagnose --json` against HTA's load and four breakdowns: whole processes on the same trace.

    .venv/bin/python benchmarks/read_vs_hta.py        # about half an hour; writes results/read_vs_hta.json

The trace is the 216,092-event one that HTA ships (`df_index_resolver`), alone and ten times in a row. HTA and its
successor `traceinsight` get an environment of their own below `build/`. The contenders run in turn, each once a round.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import flatout, machine, peak_memory, repository, spread, timed, wait_for_quiet
from replicate import replicate

TRACE = "../shared/data/public_traces/hta/df_index_resolver.json.gz"
PEERS = {
    "hta": ("HolisticTraceAnalysis==0.5.0", "pandas==2.3.3"),
    "traceinsight": ("traceinsight==0.6.1", "pandas==2.3.3"),
}
COPIES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="on the trace itself")
    parser.add_argument("--large-rounds", type=int, default=3, help="on ten of it")
    parser.add_argument("--quiet-s", type=float, default=60, help="wait so long before a round for an idle machine")
    parser.add_argument("--trace", type=Path, default=repository() / TRACE)
    parser.add_argument("--out", type=Path, default=repository() / "benchmarks/results/read_vs_hta.json")
    args = parser.parse_args()
    if not args.trace.exists():
        sys.exit(f"error: {args.trace} does not exist\nhint: it is tests/data/df_index_resolver of HTA's repository")
    peers = {name: environment(name, packages) for name, packages in PEERS.items()}
    for command in commands(peers, args.trace).values():
        timed(command)  # modules compiled, files in the page cache
    with tempfile.TemporaryDirectory(prefix="flatout-benchmark-") as folder:
        packed, plain = ten_times(args.trace, Path(folder))
        cases = [
            case("the trace", commands(peers, args.trace), args.rounds, args.quiet_s),
            case("ten times the trace, .json.gz", commands(peers, packed), args.large_rounds, args.quiet_s),
            case("ten times the trace, .json", commands({"hta": peers["hta"]}, plain), args.large_rounds, args.quiet_s),
        ]
    versions = {name: versions_of(python) for name, python in (peers | {"flatout": Path(sys.executable)}).items()}
    result = {"machine": machine(), "versions": versions, "cases": cases}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(cases))


def environment(name: str, packages: Sequence[str]) -> Path:
    """The Python of a virtual environment with these packages."""
    folder = repository() / "build" / f"benchmark-{name}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "complete").touch()
    return python


def versions_of(python: Path) -> dict[str, str]:
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True).stdout
    wanted = {"flatout", "holistictraceanalysis", "traceinsight", "msgspec", "numpy", "pandas"}
    return {p["name"]: p["version"] for p in json.loads(listed) if p["name"].lower() in wanted}


def commands(peers: dict[str, Path], trace: Path) -> dict[str, list[str]]:
    script = str(Path(__file__).with_name("hta_breakdowns.py"))
    theirs = {name: [str(python), script, str(trace)] for name, python in peers.items()}
    return theirs | {"flatout": [flatout(), "diagnose", str(trace), "--json"]}


def ten_times(trace: Path, folder: Path) -> tuple[Path, Path]:
    packed, plain = folder / "ten.json.gz", folder / "ten.json"
    with plain.open("wb") as file, gzip.open(packed, "wb", compresslevel=6) as compressed:
        for text in replicate(trace, COPIES):
            file.write(text)
            compressed.write(text)
    return packed, plain


def case(name: str, contenders: dict[str, list[str]], rounds: int, quiet_s: float) -> dict[str, Any]:
    """Rounds of one run each, in turn; then one run each for the memory."""
    runs = []
    for _ in range(rounds):
        wait_for_quiet(quiet_s)
        runs.append({contender: timed(command) for contender, command in contenders.items()})
        print(name, {contender: round(run["wall_s"], 2) for contender, run in runs[-1].items()}, file=sys.stderr)
    return {
        "name": name,
        "order": list(contenders),
        "rounds": runs,
        "wall_s": {contender: spread([r[contender]["wall_s"] for r in runs]) for contender in contenders},
        "times_faster": {
            contender: spread([r[contender]["wall_s"] / r["flatout"]["wall_s"] for r in runs])
            for contender in contenders
            if contender != "flatout"
        },
        "memory": {contender: peak_memory(command) for contender, command in contenders.items()},
    }


def table(cases: Sequence[dict[str, Any]]) -> str:
    """Markdown: median wall time and its range; ratios are taken within a round."""
    lines = ["| Trace | Tool | Wall time, s | Flatout is faster by | Peak memory, MB |", "|---|---|---|---|---|"]
    for each in cases:
        for contender, wall in each["wall_s"].items():
            ratio = each["times_faster"].get(contender)
            factor = f"{ratio['median']:.1f} ({ratio['min']:.1f} to {ratio['max']:.1f})" if ratio else ""
            time_s = f"{wall['median']:.2f} ({wall['min']:.2f} to {wall['max']:.2f})"
            memory = f"{each['memory'][contender]['peak_pss_bytes'] / 1e6:,.0f}"
            lines.append(f"| {each['name']} | {contender} | {time_s} | {factor} | {memory} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
