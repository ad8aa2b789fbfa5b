"""`flatout explain`: explain a finding, or the error message of a failed job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.output import print_json, text_style
from flatout.cli.values import InvalidValue

_MOST_BYTES = 64 * 2**20  # of a log, from its end


def _parse_phase(text: str) -> str:
    if text not in ("start", "training"):
        raise InvalidValue("must be start or training")
    return text


def explain(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Finding name or code; omit to list all.")] = None,
    error: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Explain this error message or log instead; - reads stdin."),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(
            metavar="start|training",
            parser=_parse_phase,
            help="For --error: whether the error occurred before or after the first step. [default: unknown]",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON.")] = False,
) -> None:
    """Explain a finding, or with --error the failure of a job: what it means, what to do, and whether a restart helps.

    Example: flatout explain straggler

    Example: flatout explain --error slurm-123.out
    """
    from flatout.errors import UsageError

    if error is None and phase is not None:
        raise UsageError("`--phase` requires `--error`", hint="flatout explain --error FILE")
    if error is not None and name is not None:
        raise UsageError(
            "`--error` cannot be combined with the name of a finding",
            hint="flatout explain --error FILE",
        )
    if error is not None:
        _explain_error(error, phase, json=json)
    else:
        _explain_finding(name, json=json)


def _explain_error(file: Path, phase: str | None, *, json: bool) -> None:
    import msgspec

    from flatout.catalog.failures import Phase
    from flatout.errors import InputError
    from flatout.keep.explain_failure import explain_failure
    from flatout.report.failure_text import failure_text

    text = _text_of(file)
    if not text.strip():
        raise InputError(f"{_named(file)} has no text", hint="pass the last lines that the job wrote")
    explanation = explain_failure(text, msgspec.convert(phase, Phase | None))
    if json:
        print_json("flatout/failure-explanation", explanation)
    else:
        print(failure_text(explanation, text_style()))


def _text_of(file: Path) -> str:
    from flatout.errors import InputError
    from flatout.input_files import read_end, read_end_of_stream

    is_stdin = str(file) == "-"
    try:
        if is_stdin:
            data = read_end_of_stream(sys.stdin.buffer, max_bytes=_MOST_BYTES)
        else:
            data = read_end(file, max_bytes=_MOST_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{_named(file)} cannot be read: {reason[:1].lower()}{reason[1:]}",
            hint="pass the last lines that the job wrote" if is_stdin else "pass a file, or - for stdin",
        ) from None
    return data.decode(errors="replace")


def _named(file: Path) -> str:
    return "standard input" if str(file) == "-" else str(file)


def _explain_finding(name: str | None, *, json: bool) -> None:
    from flatout.diagnose.explain import Explanations, explanation, listed

    summaries = dict(listed())
    if json:
        names = [name] if name is not None else list(summaries)
        print_json("flatout/explanation", Explanations(findings=tuple(explanation(each) for each in names)))
        return
    style = text_style()
    if name is None:
        for finding, summary in summaries.items():
            print("\n".join(style.wrapped(summary, label=f"{finding:26s}")))
        print(f"\nnext: flatout explain {next(iter(summaries))}")
        return
    explained = explanation(name)
    print("\n".join(style.wrapped(f"{explained.name} ({explained.code}): {explained.summary}")))
    for heading, text in explained.sections.items():
        print(f"\n{heading}")
        print("\n".join(style.wrapped(text, indent="    ")))
