"""`flatout bench --share`: what a share of a GPU delivers, and whether two commands gain from sharing one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from flatout.cli.output import print_json, text_style, typed_command
from flatout.errors import UsageError
from flatout.records.sharing import SharingResult

SCHEMA = "flatout/sharing"
_MOST_PROCESSES = 16


def share(
    command: list[str],
    other: str | None,
    *,
    ranks: int | None,
    whole: Path | None,
    out: Path | None,
    force: bool,
    json: bool,
    others: bool,
) -> None:
    """Measure, print, and write the result to `out` if there is one. `others`: options of ceilings were given, too."""
    if others:
        raise UsageError(
            "`--share` measures shares alone: not with --path, --allow-write, --only or --fail-on",
            hint="flatout bench --share --out share.json",
        )
    from flatout.report.files import check_new, write_new
    from flatout.report.json import enveloped_json

    if out is not None:
        check_new(out, force=force)
    result = _measured(command, other, ranks=ranks, whole=whole)
    if out is not None:
        write_new(out, enveloped_json(SCHEMA, 1, typed_command(), result), force=force)
        print(f"wrote {out}", file=sys.stderr)
    if json:
        print_json(SCHEMA, result)
        return
    from flatout.report.sharing_text import sharing_text

    print(sharing_text(result, style=text_style()))


def _measured(command: list[str], other: str | None, *, ranks: int | None, whole: Path | None) -> SharingResult:
    from flatout.probe.ceilings.saved import load_ceilings
    from flatout.report.progress import ProgressLine
    from flatout.share_pipeline import measure_pair, measure_shares

    if bool(command) != (other is not None):
        raise UsageError(
            "`--share` compares two commands: one in `--with`, and one after `--`",
            hint="flatout bench --share --with 'python b.py' -- python a.py; without both, it measures shares alone",
        )
    with ProgressLine("measuring shares") as progress:
        if other is not None:
            words = _words(other)
            return measure_pair(command, words, progress=progress.show)
        number = 2 if ranks is None else ranks
        if not 2 <= number <= _MOST_PROCESSES:
            raise UsageError(f"`--share` needs 2 to {_MOST_PROCESSES} processes, but `--ranks` is {number}")
        return measure_shares(number, whole=load_ceilings(whole) if whole is not None else None, progress=progress.show)


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"`--with` must be a command, but has an unfinished quotation: {error}") from None
    if not words:
        raise UsageError("`--with` must be a command, but is empty")
    return words
