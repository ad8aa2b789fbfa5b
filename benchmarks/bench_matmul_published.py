"""`flatout bench`'s matrix products beside published achievable figures, for the GPU that is here.

    python benchmarks/bench_matmul_published.py --out FILE [--rounds 3] [--time 60s]
    python benchmarks/bench_matmul_published.py --out FILE --ceilings ceilings.json    # what was measured before

What is published: the share of the peak that Stas Bekman's search over shapes reached ("Maximum Achievable Matmul
FLOPS", https://github.com/stas00/ml-engineering), and the vendor's peak of dense products; both from the catalogue
(`systems.toml`, `gpus.toml`), which has source and date of each. His is the best of thousands of shapes; Flatout's the
best of its grid, a median of interleaved repetitions on random data, so that a little less is expected. A GPU that he
has no figure for, or the catalogue no entry, is said to have none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure

from flatout.catalog.gpus import gpu_facts
from flatout.catalog.systems import all_systems
from flatout.probe.ceilings import load_ceilings
from flatout.records.ceilings import Ceilings


def measured(out: Path, time: str) -> Ceilings:
    """One run of `flatout bench --only matmul` on the first GPU."""
    command = [sys.executable, "-m", "flatout", "bench", "--only", "matmul", "--ranks", "1", "--time", time]
    done = subprocess.run([*command, "--out", str(out), "--force"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: flatout bench ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return load_ceilings(out)


def published(gpu: str) -> dict[str, dict[str, Any]]:
    """Operand type -> peak, achievable (None: no figure), with their sources."""
    facts = gpu_facts(gpu)
    if facts is None:
        return {}
    system = next((one for one in all_systems().values() if one.gpu == facts.name), None)
    shares = {} if system is None else system.matmul_share  # measured ones; `assumed_share` is no published figure
    return {
        dtype: {
            "peak_flops_per_s": peak,
            "achievable_flops_per_s": shares[dtype] * peak if dtype in shares else None,
            "peak_source": f"{facts.source} ({facts.date})",
            "system": None if system is None else f"{system.source} ({system.date})",  # an H200's share is an H100's
        }
        for dtype, peak in facts.peak_flops_per_s.items()
    }


def beside(rounds: list[Ceilings]) -> dict[str, dict[str, Any]]:
    """Operand type -> ours (median and range of the runs), the shape, and the ratios to what is published."""
    known = published(rounds[0].device)
    found: dict[str, dict[str, Any]] = {}
    for dtype in rounds[0].matmul_flops_per_s():
        ours = measure.spread([one.matmul_flops_per_s()[dtype] for one in rounds if dtype in one.matmul_flops_per_s()])
        best = max((one for one in rounds[0].measurements if one.dtype == dtype), key=lambda one: one.value)
        entry: dict[str, Any] = {"flatout_flops_per_s": ours, "best_shape": best.shape, **known.get(dtype, {})}
        for name in ("peak", "achievable"):
            against = entry.get(f"{name}_flops_per_s")
            entry[f"ratio_to_{name}"] = None if against is None else ours["median"] / against
        found[dtype] = entry
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", default="60s")
    parser.add_argument("--ceilings", type=Path, metavar="FILE", help="measured before, in place of measuring now")
    given = parser.parse_args()
    saved = given.out.with_suffix(".ceilings.json")
    if given.ceilings is not None:
        rounds = [load_ceilings(given.ceilings)]
    else:
        rounds = [measured(saved, given.time) for _ in range(given.rounds)]
        saved.unlink()
    rows = beside(rounds)
    shapes = [
        {"dtype": one.dtype, "shape": one.shape, "flops_per_s": one.value, "spread": one.spread, "n": one.n}
        for one in rounds[-1].measurements
        if one.name == "matmul"
    ]
    result = {
        "gpu": rounds[0].device, "software": rounds[0].software, "machine": measure.machine(), "by_dtype": rows,
        "last_run": shapes, "not_measured": rounds[-1].not_measured,
    }  # fmt: skip
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{rounds[0].device}: {len(rounds)} runs, TFLOP/s; {rounds[0].software}")
    print(f"{'type':6}{'flatout, median (range)':>28}{'achievable':>12}{'ratio':>8}{'peak':>9}{'share':>8}  best shape")
    for dtype, row in rows.items():
        ours = row["flatout_flops_per_s"]
        text = f"{ours['median'] / 1e12:.1f} ({ours['min'] / 1e12:.1f} to {ours['max'] / 1e12:.1f})"
        values = [row.get("achievable_flops_per_s"), row["ratio_to_achievable"], row.get("peak_flops_per_s")]
        words = ["none" if value is None else f"{value / scale:.{digits}f}" for value, scale, digits in
                 zip(values, (1e12, 1.0, 1e12), (1, 3, 1), strict=True)]  # fmt: skip
        share = "none" if row["ratio_to_peak"] is None else f"{row['ratio_to_peak']:.1%}"
        shape = " x ".join(map(str, row["best_shape"]))
        print(f"{dtype:6}{text:>28}{words[0]:>12}{words[1]:>8}{words[2]:>9}{share:>8}  {shape}")


if __name__ == "__main__":
    main()
