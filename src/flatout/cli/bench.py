"""`flatout bench`: what this machine really delivers, measured and saved as the ceilings that others compare with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.diagnose import given_path

if TYPE_CHECKING:
    from flatout.probe.ceilings.raw import About
    from flatout.records.ceilings import Ceilings

_MIN_TIME_S, _MAX_TIME_S = 10.0, 86_400.0
_MAX_CPU_RANKS = 8
_END_S, _GPU_END_S = 3.0, 5.0  # the last processes end, and communicators and contexts are closed
_RANK_BYTES = 512 << 20  # of a process with torch, and of its buffers


def bench(
    path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=given_path, help="Measure the storage below this folder, by reading it."),
    ] = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Write files of Flatout's own there, and remove them in the end.")
    ] = False,
    time: Annotated[str, typer.Option(metavar="DURATION", help="How long it may take: 90s, 2m.")] = "2m",
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=1024, metavar="N", help="Processes, default: one a GPU, or one a core up to 8."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure only this: matmul, all_reduce, ... Repeatable.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="Save the ceilings here, in place of the state folder's file."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the ceilings as JSON.")] = False,
) -> None:
    """Measure what this machine really delivers: products, memory, links, collectives, storage. Ceilings, with spread.

    Example: flatout bench --path /data/train
    """
    import os
    import time as clock

    from flatout.doctor.peers import MIN_PEERS, outliers
    from flatout.errors import InputError, OutputError, UsageError
    from flatout.probe.ceilings.raw import Settings
    from flatout.probe.ceilings.start import about_machine, given_rank, run_workers
    from flatout.probe.ceilings.summary import PEER_SHARE, ceilings_of
    from flatout.probe.foreign_load import ForeignLoad
    from flatout.report.files import check_new

    time_s = _seconds(time)
    if path is not None and not path.is_dir():
        raise InputError(f"`--path` must be a folder, and `{path}` is none")
    if allow_write and path is None:
        raise UsageError("`--allow-write` needs a folder to write to", hint="flatout bench --path DIR --allow-write")
    if allow_write and path is not None and not os.access(path, os.W_OK):
        raise InputError(f"`{path}` cannot be written to", hint="leave out --allow-write to read only")
    if out is not None:
        check_new(out, force=force)
    _check_names(only or [], has_path=path is not None)
    began = clock.monotonic()
    is_later_rank = (given_rank(os.environ) or {"RANK": "0"})["RANK"] != "0"
    about = about_machine()
    num_ranks = _num_ranks(ranks, about)
    settings = Settings(
        time_s=max(_MIN_TIME_S / 2, time_s - (clock.monotonic() - began) - (_GPU_END_S if about.num_gpus else _END_S)),
        path=None if path is None else str(path.resolve()),
        allow_write=allow_write,
        uses_gpu=about.num_gpus > 0,
        only=tuple(only or ()),
    )
    others = ForeignLoad([os.getpid()], str(out or ""))
    others.read()
    with _Bar(is_quiet=is_later_rank) as bar:
        raw = run_workers(settings, num_ranks, os.environ, bar.show)
    if raw is None:
        return
    ceilings = ceilings_of(
        raw,
        took_s=clock.monotonic() - began,
        outliers=lambda values: outliers(values, share=PEER_SHARE),
        min_peers=MIN_PEERS,
        cores_busy_by_others=others.read(),
    )
    if only and not ceilings.measurements and not ceilings.wrong:
        why = "; ".join(f"{what}: {reason}" for what, reason in list(ceilings.not_measured.items())[:3])
        raise UsageError(f"nothing of `--only {' '.join(only)}` was measured", hint=why or "give it more --time")
    target, problem = None, None
    try:
        target = _save(ceilings, out, is_whole=not only, force=force)
    except OutputError as error:  # what minutes have measured is told all the same
        problem = error
    if json:
        sys.stdout.buffer.write(_json(ceilings))
    else:
        from flatout.report.ceilings_text import ceilings_text
        from flatout.report.terminal import style_of

        print(ceilings_text(ceilings, style=style_of(sys.stdout)))
    if target is not None:
        print(f"saved the ceilings: {target}", file=sys.stderr)
    if problem is not None:
        sys.stdout.flush()
        raise problem
    if ceilings.wrong:
        raise typer.Exit(1)


def _seconds(text: str) -> float:
    from flatout.errors import UsageError

    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        value = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        value = -1.0
    if not _MIN_TIME_S <= value <= _MAX_TIME_S:
        raise UsageError(f"`--time` must be a duration from 10s to 24h, as 90s or 2m, but got {text}")
    return value


def _num_ranks(given: int | None, about: About) -> int:
    from flatout.errors import UsageError
    from flatout.probe.limits import allowed_cores, free_bytes

    if not about.has_torch:
        if given is not None and given > 1:
            raise UsageError("several ranks need torch, which is not installed here", hint="pip install torch")
        return 1
    if about.num_gpus:
        if given is not None and given > about.num_gpus:
            raise UsageError(f"`--ranks` must be at most the number of GPUs, {about.num_gpus}, but got {given}")
        return given or about.num_gpus
    if given is not None and given > _MAX_CPU_RANKS:
        free = free_bytes()
        if given * _RANK_BYTES > free:
            needed = f"`--ranks {given}` needs {given * _RANK_BYTES / 1e9:.0f} GB of memory"
            most = max(_MAX_CPU_RANKS, int(free // _RANK_BYTES))
            raise UsageError(f"{needed}, and {free / 1e9:.0f} GB are free", hint=f"at most --ranks {most}")
    return given or max(2, min(_MAX_CPU_RANKS, int(allowed_cores())))


def _check_names(only: list[str], *, has_path: bool) -> None:
    from flatout.errors import UsageError
    from flatout.probe.ceilings.names import NAMES
    from flatout.probe.ceilings.storage import NAMES as STORAGE

    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise UsageError(f"`{unknown[0]}` is nothing that can be measured", hint=f"--only {', '.join(NAMES)}")
    if only and not has_path and set(only) <= set(STORAGE):
        raise UsageError(f"`--only {' '.join(only)}` needs a folder whose storage is meant", hint="--path DIR")


def _json(ceilings: Ceilings) -> bytes:
    from flatout.probe.ceilings.saved import SCHEMA, VERSION
    from flatout.report.json import enveloped_json

    return enveloped_json(SCHEMA, VERSION, ["flatout", *sys.argv[1:]], ceilings)


def _save(ceilings: Ceilings, out: Path | None, *, is_whole: bool, force: bool) -> Path | None:
    """In the state folder the newest takes the place of the one before; a part alone is saved only where it is told.

    What failed a check is saved nowhere but where it was told to: nothing is to be compared with it.
    """
    from flatout.probe.ceilings.saved import saved_path
    from flatout.report.files import write_new

    if out is None and (not is_whole or ceilings.wrong):
        return None
    target = out or saved_path(ceilings.host)
    write_new(target, _json(ceilings), force=force or out is None)
    return target


class _Bar:
    """A bar on standard error, on a terminal only."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet or not sys.stderr.isatty()

    def __enter__(self) -> _Bar:
        if not self._is_quiet:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description:28}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True),
                transient=True,
            )  # fmt: skip
            self._progress.start()
            self._task = self._progress.add_task("starting", total=None)
        return self

    def show(self, done: int, total: int, what: str) -> None:
        if not self._is_quiet:
            self._progress.update(self._task, completed=done, total=total, description=what)

    def __exit__(self, *_: object) -> None:
        if not self._is_quiet:
            self._progress.stop()
