"""Write the heading of every emitted file, with the sources of its numbers."""

from __future__ import annotations

from flatout import __version__
from flatout.records.tuning import Tuning
from flatout.records.verdict import Verdict
from flatout.secrets import MASK

_OBJECTIVES = {
    "peak_memory_bytes": "less peak memory",
    "j_per_sample": "less energy per sample",
    "j_per_step": "less energy per step",
}

_KINDS = {"unknown": "long steps of unknown cause"}

MASKED = (
    f"Values that look like secrets are {MASK} in the command: before you run it, replace each of them, e.g. with a"
    " variable of the environment"
)


def heading(tuning: Tuning, *, has_command: bool = False) -> list[str]:
    """Return the lines of the heading, without comment signs. `has_command`: the command follows in the file."""
    lines = [f"Written by flatout {__version__}: {tuning.changes.name}"]
    if tuning.verdict is not None and tuning.verdict.speedup is not None:
        lines.append(measured_words(tuning.verdict, tuning.verdict.speedup))
        if tuning.covers_first_epoch_only:
            lines.append("Measured in the first epoch only: its loader changes may cost time in later epochs")
        elif tuning.verdict.unmeasured_work:
            kinds = ", ".join(_KINDS.get(kind, kind.replace("_", " ")) for kind in tuning.verdict.unmeasured_work)
            lines.append(f"Measured without the work of some steps ({kinds}): its time with the changes is unknown")
    unknown = [tuned.change.name for tuned in tuning.each if not tuned.is_shown_alone]
    if unknown:
        lines.append(
            f"Measured only together with others, so the effect of each alone is unknown: {', '.join(unknown)}"
        )
    where = ", ".join(f"{name} {value}" for name, value in {**tuning.machine, **tuning.versions}.items())
    if where:
        lines.append(f"On: {where}")
    if has_command and any(MASK in word for word in (*tuning.command, *tuning.sbatch_options)):
        lines.append(MASKED)
    return [one_comment_line(line) for line in lines]


def measured_words(verdict: Verdict, speedup: float) -> str:
    """Return the verdict with its interval, the number of trials and their order."""
    what = _OBJECTIVES.get(verdict.objective, "as fast")
    between = f", {verdict.interval[0]:.3f} to {verdict.interval[1]:.3f}" if verdict.interval else ""
    order = verdict.order or "order unknown"
    trials = f"{verdict.num_pairs} pairs: {order}"
    if verdict.num_candidates:
        trials = f"{verdict.num_candidates} trials, {verdict.num_baselines} of the baseline: {order}"
    return f"Measured: {verdict.verdict}, {speedup:.3f} times {what}{between} ({trials})"


def one_comment_line(text: str) -> str:
    """Return the text on one line, without characters that could end a comment or that TOML forbids in one.

    The text can contain names from other people's files and jobs.
    """
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def commented(tuning: Tuning, *, has_command: bool = False) -> str:
    return "".join(f"# {line}\n" for line in heading(tuning, has_command=has_command))
