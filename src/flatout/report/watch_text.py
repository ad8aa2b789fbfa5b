"""A running job at one moment, as lines for a terminal. In: `WatchStatus` and the size. Out: lines that fit.

The table has one row per rank. What does not fit can be scrolled to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from flatout.errors import FlatoutError
from flatout.records.expectation import StepExpectation
from flatout.records.watch import LiveFinding, RankStatus, Recorded, RecordingProgress, WatchStatus
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle, visible
from flatout.units import num_bytes, number, percent, rank_ranges, seconds

UNKNOWN = "-"
_OMITTED = "..."
_LEAST_NAME = 14  # characters of a job's name in `flatout top`, before columns are omitted
KEYS = "q quit   s sort   p pause   arrows scroll"
_MEGA = 1e6
_CAUSES = {
    "late_rank": "one rank is late",
    "data_loading": "waiting for batches",
    "storage": "waiting for batches, and storage answers slowly",
    "memory": "host memory grows",
    "throttling": "GPU clocks are lowered",
    "communication": "exchange of gradients",
    "link_errors": "exchange of gradients, with errors on network links",
    "stopped": "processes are stopped",
    "noisy_neighbour": "other processes use the host",
    "computation": "all ranks compute longer, and wait no longer",
    "unknown": "cause unknown",
}


class _Column(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    width: int
    cell: Callable[[RankStatus], str]


def _known(value: float | None, form: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else form(value)


def _of_gpu(name: str, form: Callable[[float], str]) -> Callable[[RankStatus], str]:
    return lambda rank: UNKNOWN if rank.gpu is None else _known(getattr(rank.gpu, name), form)


# In the order of their worth: on a narrow terminal one scrolls to the last ones.
_COLUMNS = (
    _Column(title="rank", width=5, cell=lambda rank: _known(rank.rank, str)),
    _Column(title="state", width=8, cell=lambda rank: rank.state.upper() if rank.state == "lost" else rank.state),
    _Column(title="steps", width=9, cell=lambda rank: _known(rank.steps, lambda value: f"{value:,.0f}")),
    _Column(title="step", width=8, cell=lambda rank: _known(rank.step_s, seconds)),
    _Column(title="data", width=6, cell=lambda rank: _known(rank.data_share, percent)),
    _Column(title="late", width=8, cell=lambda rank: _known(rank.late_s, seconds)),
    _Column(title="GPU", width=5, cell=_of_gpu("busy_percent", lambda value: f"{value:.0f} %")),
    _Column(title="MHz", width=5, cell=_of_gpu("sm_clock_hz", lambda value: f"{value / _MEGA:.0f}")),
    _Column(title="watts", width=5, cell=_of_gpu("power_w", lambda value: f"{value:.0f}")),
    _Column(title="GPU mem", width=8, cell=_of_gpu("memory_used_bytes", num_bytes)),
    _Column(title="last", width=8, cell=lambda rank: _known(rank.age_s, seconds)),
    _Column(title="memory", width=8, cell=lambda rank: _known(rank.memory_bytes, num_bytes)),
    _Column(title="exposed", width=8, cell=lambda rank: _known(rank.exposed_s, seconds)),
    _Column(title="ckpt", width=6, cell=lambda rank: _known(rank.checkpoint_share, percent)),
    _Column(title="eval", width=6, cell=lambda rank: _known(rank.evaluation_share, percent)),
    _Column(title="cores", width=5, cell=lambda rank: _known(rank.cores_busy, lambda value: f"{value:.1f}")),
    _Column(title="phase", width=10, cell=lambda rank: rank.phase or UNKNOWN),
    _Column(title="host", width=16, cell=lambda rank: rank.host or UNKNOWN),
)


def watch_lines(
    status: WatchStatus,
    style: TextStyle,
    *,
    height: int | None = None,
    first_row: int = 0,
    first_column: int = 0,
    has_keys: bool = False,
) -> list[str]:
    """Return the lines for one job. `height` None: all rows.

    `first_row` is the first rank that is shown, and `first_column` the first column next to the rank's number.
    """
    above = _heading(status, style)
    below = [*_finding_lines(status, style), *_notes(status, style, is_short=height is not None)]
    if has_keys:
        below.append(style.dim(_cut(KEYS, style)))
    rows = _rows(status.ranks, style, first_column)
    if height is not None:
        num_rows = max(height - len(above) - len(below) - 1, 1)
        first_row = min(first_row, max(len(rows) - 1 - num_rows, 0))
        rows = [rows[0], *rows[1 + first_row : 1 + first_row + num_rows]]
        rows += [""] * (num_rows + 1 - len(rows))
    lines = [*above, *rows, *below]
    return lines if height is None else lines[:height]


def _heading(status: WatchStatus, style: TextStyle) -> list[str]:
    attempt = "" if status.attempt is None else f"   attempt {status.attempt + 1}"
    first = f"{visible(status.name)}   {status.program}   PID {status.pid}{attempt}"
    lines = [style.bold(_cut(style.clean(first), style)), _cut("   ".join(_facts(status)), style)]
    if status.missing_ranks and status.ranks:
        lines.append(_cut(f"not seen here: ranks {rank_ranges(status.missing_ranks)}", style))
    promised = promised_sentence(status)
    if promised is not None:
        lines.append(_cut(promised, style))
    lost = [rank.rank for rank in status.ranks if rank.state == "lost" and rank.rank is not None]
    if lost:
        lines.append(style.bold(_cut(f"LOST: {_ranks(lost)}", style)))
    return [*lines, ""]


def _facts(status: WatchStatus) -> list[str]:
    """Return what is known of the job as a whole."""
    num_alive = sum(rank.state in ("running", "starting", "stopped") for rank in status.ranks)
    of_all = "" if status.world_size is None else f" of {status.world_size}"
    facts = [f"{num_alive}{of_all} ranks alive"]
    if status.step_s is not None:
        facts.append(f"{seconds(status.step_s)} per step")
    if status.goodput is not None:
        facts.append(f"goodput {percent(status.goodput)}")
    if status.tokens_per_s is not None:
        facts.append(f"{number(status.tokens_per_s)} tokens/s")
    elif status.samples_per_s is not None:
        facts.append(f"{number(status.samples_per_s)} samples/s")
    if status.mfu is not None:
        facts.append(f"MFU {percent(status.mfu)}")
    if status.devices is not None:
        facts.append(counted(status.devices, "device"))
    return facts


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {rank_ranges(ranks)}"


def _rows(ranks: Sequence[RankStatus], style: TextStyle, first_column: int) -> list[str]:
    """Return the header and a row for each rank, with the columns that fit and that have a value for some rank."""
    of_rank, *others = _useful_columns(ranks)
    useful = [of_rank, *others[min(first_column, max(len(others) - 1, 0)) :]]
    columns: list[_Column] = []
    width = 0
    for column in useful:
        width += column.width + (1 if columns else 0)
        if width > style.width:
            break
        columns.append(column)
    header = style.dim(" ".join(f"{column.title:>{column.width}}" for column in columns))
    return [header, *(_row(rank, columns, style) for rank in ranks)]


def _useful_columns(ranks: Sequence[RankStatus]) -> list[_Column]:
    """Return the columns that have a value for some rank; the first one is always the rank's number."""
    of_rank, *others = _COLUMNS
    return [of_rank, *(each for each in others if not ranks or any(each.cell(rank) != UNKNOWN for rank in ranks))]


def num_scrollable_columns(ranks: Sequence[RankStatus]) -> int:
    return len(_useful_columns(ranks)) - 1


def _row(rank: RankStatus, columns: Sequence[_Column], style: TextStyle) -> str:
    cells = [f"{style.clean(column.cell(rank))[: column.width]:>{column.width}}" for column in columns]
    line = " ".join(cells)
    return style.bold(line) if rank.state == "lost" else line


def _finding_lines(status: WatchStatus, style: TextStyle) -> list[str]:
    return [_cut(finding_sentence(finding), style) for finding in status.findings]


def finding_sentence(finding: LiveFinding) -> str:
    """Return one line on a slowdown, while it continues or after it has ended."""
    steps = f"since step {finding.first_step:,}"
    if finding.last_step is not None:
        steps = f"steps {finding.first_step:,} to {finding.last_step:,}"
    where = f", {_ranks(finding.ranks)}" if finding.ranks else ""
    parts = [f"{steps}: {_CAUSES[finding.cause]}{where}"]
    if finding.after_s != finding.before_s:
        parts.append(f"{seconds(finding.before_s)} to {seconds(finding.after_s)} per step")
    if finding.cost_gpu_h:
        so_far = " so far" if finding.last_step is None else ""
        parts.append(f"{finding.cost_gpu_h:.3g} GPU-hours{_money(finding.cost_usd)}{so_far}")
    return ": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:])


def _money(usd: tuple[float, float] | None) -> str:
    if usd is None:
        return ""
    low, high = (f"{value:.2f}" for value in usd)
    return f" ({low} USD)" if low == high else f" ({low} to {high} USD)"


def promised_sentence(status: WatchStatus) -> str | None:
    """Return what the tuning measured, and how the job's step time compares with it; None without a tuning."""
    promised = status.promised
    if promised is None:
        return None
    tuned = f"tuned.toml measured {seconds(promised.low_s)} to {seconds(promised.high_s)} per step"
    if status.step_s is None:
        return tuned
    if promised.num_ranks is not None and promised.num_ranks != status.world_size:
        return f"{tuned}, on {promised.num_ranks} ranks: not comparable"
    return f"{tuned}, {seconds(promised.without_s)} without its changes: {_against(promised, status.step_s)}"


def _against(promised: StepExpectation, step_s: float) -> str:
    if step_s <= promised.high_s:
        return "as tuned"
    if step_s <= promised.without_s:
        return f"slower than tuned by {percent(step_s / promised.high_s - 1)}"
    return "slower than without its changes"


def recording_sentence(recorded: Recorded | FlatoutError) -> str:
    """Return what was traced when a slowdown began, and the next command; or why nothing was."""
    if isinstance(recorded, FlatoutError):
        return f"nothing was traced: {recorded}"
    missing = f", {_ranks(sorted(recorded.problems))} incomplete or missing" if recorded.problems else ""
    return f"traced {counted(len(recorded.ranks), 'rank')}{missing}; next: flatout diagnose {recorded.folder}"


def _notes(status: WatchStatus, style: TextStyle, *, is_short: bool) -> list[str]:
    if is_short:
        return [style.dim(_cut(note, style)) for note in status.notes]
    return [line for note in status.notes for line in style.wrapped(note, label="note: ")]


def recording_progress(progress: RecordingProgress) -> str:
    """Return what a recording waits for."""
    first, last = progress.first_step, progress.first_step + progress.num_steps - 1
    if progress.step < first - 1:
        return f"steps {first:,} to {last:,} will be traced; the job is at {progress.step:,}"
    if progress.step < last:
        return f"tracing steps {first:,} to {last:,}; the job is at {progress.step:,}"
    return f"writing the traces: {progress.num_traced} of {progress.num_ranks} ranks"


def record_problems(ranks: Sequence[int], problems: Mapping[int, str]) -> list[str]:
    """Return a line for each rank whose trace is missing or incomplete."""
    lines = []
    for rank, problem in problems.items():
        what = "is incomplete" if rank in ranks else "is missing"
        lines.append(f"note: the trace of rank {rank} {what}: {visible(problem)}")
    return lines


def top_lines(statuses: Sequence[WatchStatus], style: TextStyle, height: int | None = None) -> list[str]:
    """Return one line per job of this host, and at the end how many do not fit into `height` lines."""
    if not statuses:
        no_job = "no job of `flatout run` or `flatout profile` runs here"
        return [*style.wrapped(no_job), *style.wrapped("start one: flatout run -- COMMAND")]
    lines = _top_rows(statuses, style)
    if height is None or len(lines) <= height:
        return lines
    shown = lines[: height - 1]
    num_hidden = len(lines) - len(shown)
    return [*shown, style.dim(f"{num_hidden} more: flatout top --once")]


# By title, the columns of a job in `flatout top`.
_TOP_CELLS: dict[str, Callable[[WatchStatus], str]] = {
    "PID": lambda status: str(status.pid),
    "ranks": lambda status: f"{len(status.ranks)}/{status.world_size or UNKNOWN}",
    "lost": lambda status: str(sum(rank.state == "lost" for rank in status.ranks)),
    "step": lambda status: _known(status.step_s, seconds),
    "data": lambda status: _known(max(_data_shares(status), default=None), percent),
    "goodput": lambda status: _known(status.goodput, percent),
}
_OMITTED_FIRST = ("data", "goodput", "ranks")  # on a terminal that leaves too little width for the names


def _data_shares(status: WatchStatus) -> list[float]:
    return [rank.data_share for rank in status.ranks if rank.data_share is not None]


def _top_rows(statuses: Sequence[WatchStatus], style: TextStyle) -> list[str]:
    columns = {title: [title, *map(cell, statuses)] for title, cell in _TOP_CELLS.items()}
    names = [visible(status.name) for status in statuses]
    needed = min(max(map(len, names)), _LEAST_NAME)
    for title in _OMITTED_FIRST:
        if _name_width(columns, style) < needed:
            del columns[title]
    widths = [max(map(len, cells)) for cells in columns.values()]
    rows = [
        " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in zip(*columns.values(), strict=True)
    ]
    width = _name_width(columns, style)
    shown = [style.clean(_shortened(name, width)) for name in names]
    return [style.dim(f"{rows[0]}  job"), *(f"{row}  {name}" for row, name in zip(rows[1:], shown, strict=True))]


def _name_width(columns: Mapping[str, Sequence[str]], style: TextStyle) -> int:
    """Return how much of the width the columns leave for the names."""
    return style.width - sum(max(map(len, cells)) + 1 for cells in columns.values()) - 1


def _shortened(name: str, width: int) -> str:
    """Return a name that fits: its end says as much as its beginning, so the middle is omitted."""
    if len(name) <= width:
        return name
    kept = max(width - len(_OMITTED), 2)
    return name[: (kept + 1) // 2] + _OMITTED + name[-(kept // 2) :]


def _cut(text: str, style: TextStyle) -> str:
    return text if len(text) <= style.width else text[: style.width - 3] + "..."
