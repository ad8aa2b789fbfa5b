"""What every file says first: where its numbers come from."""

from __future__ import annotations

from flatout import __version__
from flatout.records.tuning import Tuning

_WHAT = {
    "peak_memory_bytes": "less peak memory",
    "j_per_sample": "less energy a sample",
    "j_per_step": "less energy a step",
}


def heading(tuning: Tuning) -> list[str]:
    """Lines without a comment sign."""
    lines = [f"Written by flatout {__version__}: {tuning.changes.name}"]
    verdict = tuning.verdict
    if verdict is not None and verdict.speedup is not None:
        what = _WHAT.get(verdict.objective, "as fast")
        between = f", {verdict.interval[0]:.3f} to {verdict.interval[1]:.3f}" if verdict.interval else ""
        lines.append(
            f"Measured: {verdict.verdict}, {verdict.speedup:.3f} times {what}{between}"
            f" ({verdict.num_pairs} pairs: {verdict.order or 'order unknown'})"
        )
    unknown = [one.change.name for one in tuning.each if not one.is_shown_alone]
    if unknown:
        lines.append(f"Not shown to bring anything by themselves, only together with others: {', '.join(unknown)}")
    where = ", ".join(f"{name} {value}" for name, value in {**tuning.machine, **tuning.versions}.items())
    if where:
        lines.append(f"On: {where}")
    # One line each, and nothing that could end a comment or that TOML forbids in one.
    return ["".join(c for c in " ".join(line.split()) if c.isprintable()) for line in lines]


def commented(tuning: Tuning, sign: str = "#") -> str:
    return "".join(f"{sign} {line}\n" for line in heading(tuning))
