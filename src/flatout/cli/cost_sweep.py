"""`flatout cost power-cap --sweep -- COMMAND`: measure a curve here, and write it in the form of a measured one."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path

from flatout.cli.next_command import repeated
from flatout.errors import UsageError


def parse_limits(text: str | None) -> tuple[float, ...]:
    """Parse `700,600,500`. Raises UsageError for anything that is not a list of watts."""
    if text is None:
        return ()
    try:
        limits = tuple(float(part) for part in text.split(","))
    except ValueError:
        limits = ()
    if not limits or not all(0 < limit < 1e5 for limit in limits):
        raise UsageError(f"`--limits` must be watts like 700,600,500, but is `{text}`")
    return limits


def swept(command: list[str], limits: str | None, *, applies: bool, out: Path, force: bool) -> Path | None:
    """Measure the command, and return the curve that was written; None without `applies`, which only says the plan."""
    from flatout.power_sweep_pipeline import SweepRequest, planned_limits, sweep
    from flatout.probe.power_limits import PowerLimits
    from flatout.report.command import quoted
    from flatout.report.files import check_new, write_new
    from flatout.report.progress import ProgressLine

    request = SweepRequest(command=tuple(command), limits_w=parse_limits(limits))
    check_new(out, force=force)
    gpus = PowerLimits()
    if not applies:
        own = gpus.read()
        planned = planned_limits(request, own)
        watts = ", ".join(f"{limit:g}" for limit in planned)
        print(f"would set {len(own)} GPUs to {watts} W, run the command twice at each, and put the limits back")
        print("only on a machine that is yours: other jobs on these GPUs would be slowed, too")
        words = repeated(sys.argv[1:])
        position = words.index("--") if "--" in words else len(words)
        print(f"next: {' '.join(map(quoted, [*words[:position], '--apply', *words[position:]]))}")
        return None
    with ProgressLine("measuring power limits") as progress:
        samples = sweep(request, gpus, os.environ, progress=progress.show)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["workload", "power_limit", "time_per_epoch", "average_power"])
    for sample in samples:
        writer.writerow([*sample.workload, f"{sample.limit_w:g}", f"{sample.time_s:.6g}", f"{sample.power_w:.6g}"])
    write_new(out, text.getvalue(), force=force)
    print(f"wrote {out}", file=sys.stderr)
    return out
