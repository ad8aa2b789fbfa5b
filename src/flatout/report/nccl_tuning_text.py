"""What `flatout tune nccl` found, as text for a terminal."""

from __future__ import annotations

from flatout.records.nccl_tuning import NcclTuning, SizeResult
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import num_bytes, seconds

_MOST_WRONG = 8


def nccl_tuning_text(tuning: NcclTuning, *, style: TextStyle) -> str:
    """Return the chosen settings, the result of each size, what was wrong, and how to apply it."""
    work = tuning.work
    lines = [
        *style.wrapped(f"{tuning.software}, over {tuning.transport}; {work.source}"),
        f"{tuning.num_candidates} candidates, {len(work.cases)} sizes, {tuning.num_rounds} interleaved rounds",
        "",
        *_settings(tuning, style),
        "",
        *text_table(
            ("collective", "ranks", "nodes", "size", "default", "choice", "speedup", "again"),
            [_row(size) for size in tuning.sizes],
            style=style,
            flexible=(5,),
        ),
        "",
        *_wrong(tuning, style),
        *[
            line
            for name, reason in tuning.not_measured.items()
            for line in style.wrapped(f"not measured: {name}: {reason}")
        ],
        *[line for note in tuning.notes for line in style.wrapped(note, label="note: ")],
        *_next(tuning, style),
    ]
    return "\n".join(lines)


def _settings(tuning: NcclTuning, style: TextStyle) -> list[str]:
    if not tuning.settings or tuning.settings_interval is None or tuning.settings_speedup is None:
        return ["settings of the process: the default"]
    words = " ".join(f"{name}={value}" for name, value in tuning.settings.items())
    basis = "on average over the sizes" if tuning.work.is_standard else "for the collectives of one step"
    low, high = tuning.settings_interval
    return style.wrapped(
        f"settings of the process: {words}, {tuning.settings_speedup:.2f}x as fast {basis} ({low:.2f} to {high:.2f})"
    )


def _row(size: SizeResult) -> tuple[str, ...]:
    speedup = again = ""
    if size.speedup is not None and size.interval is not None:
        speedup = f"{size.speedup:.2f}x ({size.interval[0]:.2f} to {size.interval[1]:.2f})"
    if size.candidate is not None:
        again = "not measured" if size.confirmed_speedup is None else f"{size.confirmed_speedup:.2f}x"
    return (
        size.collective,
        str(size.num_ranks),
        str(size.num_nodes),
        num_bytes(size.num_bytes),
        seconds(size.default_s),
        size.candidate or "default",
        speedup,
        again,
    )


def _wrong(tuning: NcclTuning, style: TextStyle) -> list[str]:
    lines = []
    for wrong in tuning.wrong[:_MOST_WRONG]:
        where = ""
        if wrong.case is not None:
            case = tuning.work.cases[wrong.case]
            where = f" ({case.collective}, {num_bytes(case.num_bytes)})"
        lines += style.wrapped(f"wrong: {wrong.candidate}{where}: {wrong.problem}; its speed does not count")
    hidden = len(tuning.wrong) - _MOST_WRONG
    return [*lines, f"and {hidden} more wrong candidates"] if hidden > 0 else lines


def _not_measured(tuning: NcclTuning, style: TextStyle) -> list[str]:
    lines = []
    for name, reason in tuning.not_measured.items():
        lines += style.wrapped(f"{name}: {reason}", label="not measured: ")
    return lines


def _next(tuning: NcclTuning, style: TextStyle) -> list[str]:
    if not tuning.environment:
        if tuning.table.rows:
            return ["a simulated fabric: the table shows what would be chosen, and there is nothing to apply"]
        return ["nothing was shown to be faster than the default, so there is nothing to apply"]
    words = " ".join(f"{name}={value}" for name, value in tuning.environment.items())
    return [
        *style.wrapped("whether a job's step becomes faster: flatout tune nccl -- COMMAND"),
        *style.wrapped(f"to apply it: {words} flatout run -- COMMAND"),
    ]
