"""The command line: one thin file a verb, which parses, calls and reports; `main` turns errors into exit codes.

Importing this package imports no stage and no numpy, so that `flatout --help` is quick: a verb imports what it needs
inside its function. Typer is told not to load rich for help and errors for the same reason.

    0    done
    1    only where it was asked for (`--fail-on`), or where a verb says so
    2    bad input, bad arguments, or an error of ours
    130  interrupted
    141  the reader of standard output went away
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flatout import __version__
from flatout.errors import FlatoutError, OutputError
from flatout.inside.protocol import Variable

# In the order of `flatout --help`. A verb is a function of the same name in a file of the same name.
VERBS: tuple[str, ...] = (
    *("diagnose", "diff", "explain", "profile", "tune", "run", "ledger", "doctor", "bench", "plan", "submit", "cost"),
)


class _Verbs(TyperGroup):
    """Keeps Ctrl-C and a closed pipe from Typer, which would end the first in silence and the second with code 1."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # click moved into typer in 0.26
        try:
            return super().invoke(ctx)  # type: ignore[arg-type, unused-ignore]
        except (BrokenPipeError, KeyboardInterrupt) as error:
            sys.exit(_report(error))


# What the parser raises; it moved from click into typer in 0.26.
_UsageError = typer.BadParameter.__mro__[1]

app = typer.Typer(
    cls=_Verbs,
    help="Where every nanosecond of a distributed PyTorch training step went, which rank and cause made the others "
    "wait, and what makes your own script faster.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flatout {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _verb in VERBS:
    app.command(_verb)(getattr(import_module(f"flatout.cli.{_verb}"), _verb))
app.add_typer(import_module("flatout.cli.schedule").app, name="schedule")


def main() -> int:
    """Run the command in `sys.argv`; the exit code. A user sees a traceback only with FLATOUT_DEBUG=1."""
    _open_closed_streams()
    try:
        try:
            code = app(prog_name="flatout", standalone_mode=False)
        except SystemExit as stop:
            sys.stdout.flush()
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place that ends the process
        return _report(error)
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """A process that was started with `>&-` or `2>&-` has no such stream; what it writes there goes nowhere."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _report(error: BaseException) -> int:
    """Say on standard error what went wrong; the exit code."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(error, OSError) and error.filename is None:
        # Python flushes standard output once more at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
    if isinstance(error, _UsageError):
        return _refuse(error)
    shown = error if isinstance(error, FlatoutError) else _as_ours(error)
    print(f"error: {shown}", file=sys.stderr)
    if shown.hint:
        print(f"hint: {shown.hint}", file=sys.stderr)
    return shown.exit_code


def _refuse(error: Any) -> int:
    """What the parser has against the arguments, in one line, with where they are explained."""
    message = error.format_message().strip()
    if "\n" in message:  # no argument was given: it is the help itself
        error.show()
        return 2
    verb = next((word for word in sys.argv[1:2] if word in (*VERBS, "schedule")), "")
    # Of an option without its value the parser does not say whose it is.
    command = error.ctx.command_path if error.ctx is not None else f"flatout {verb}".strip()
    print(f"error: {message[:1].lower()}{message[1:].rstrip('.')}", file=sys.stderr)
    print(f"hint: {command} --help", file=sys.stderr)
    return 2


def _as_ours(error: BaseException) -> FlatoutError:
    """An error that no stage foresaw, in our words."""
    import traceback

    if os.environ.get(Variable.DEBUG):
        traceback.print_exception(error)
    if isinstance(error, OSError):
        return OutputError(f"{error.filename or 'standard output'}: {error.strerror or error}")
    if isinstance(error, MemoryError):
        return FlatoutError("this needs more memory than the machine has", hint="give it fewer or shorter traces")
    detail = traceback.format_exception_only(error)[-1].strip()
    return FlatoutError(
        f"internal error, please report it: {detail}",
        hint=f"run it again with {Variable.DEBUG}=1 for the traceback",
    )
