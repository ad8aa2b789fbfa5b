"""The command line: one thin file per command, which parses, calls and reports; `main` turns errors into exit codes.

Importing this package imports no stage and no numpy, so that `flatout --help` is fast: each command imports what it
needs inside its function. For the same reason Typer does not load rich for help and errors.

    0    done
    1    only if requested (`--fail-on`), or if the command's help says so
    2    bad input, bad arguments, or an internal error
    130  interrupted
    141  the reader of standard output closed it
"""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout import __version__
from flatout.cli.help import Command, Group
from flatout.cli.settings import FILE, WITHOUT_FILE, default_map
from flatout.cli.values import InvalidValue
from flatout.errors import FlatoutError, OutputError
from flatout.inside.protocol import Variable
from flatout.report.streams import clean_streams, one_line
from flatout.secrets import masked_text

# The commands by heading, in the order of `flatout --help`. The command `x` is the function `x` of `x.py`, or the `app`
# of `x.py` if that has several commands.
HEADINGS: dict[str, tuple[str, ...]] = {
    "Set up": ("init",),
    "Measure": ("diagnose", "diff", "compare", "explain", "profile", "data", "doctor", "bench"),
    "Fix": ("tune", "compress", "plan"),
    "Keep running": ("run", "ledger", "watch", "top"),
    "Over time": ("track", "log", "index"),
    "Many jobs": ("submit", "schedule", "cost"),
}
# Commands below a verb that takes a command of the user, and so cannot be a group: by name, with their functions.
BELOW_VERBS = {
    "tune jax": "tune_jax",
    "tune nccl": "tune_nccl",
    "tune --serve": "tune_serve",
    "watch emit": "watch_emit",
    "watch node": "watch_node",
}
VERBS: tuple[str, ...] = tuple(name for names in HEADINGS.values() for name in names)


class _Commands(Group):
    """All commands, under their headings.

    It handles Ctrl-C and a closed pipe instead of Typer, which would exit without a message for the first, and with
    code 1 for the second.
    """

    headings = HEADINGS

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        served = _without_serve(args)
        if served is not None:
            return "tune --serve", self.commands["tune --serve"], served
        name = " ".join(args[:2])
        if name in BELOW_VERBS:
            return name, self.commands[name], args[2:]
        return super().resolve_command(ctx, args)  # type: ignore[arg-type, unused-ignore]

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # click moved into typer in 0.26
        try:
            return super().invoke(ctx)  # type: ignore[arg-type, unused-ignore]
        except (BrokenPipeError, KeyboardInterrupt) as error:
            sys.exit(_report(error))


def _without_serve(args: list[str]) -> list[str] | None:
    """Return what follows `tune` without the word `--serve`, which may stand anywhere before `--`; None without it."""
    options = args[1 : args.index("--")] if "--" in args else args[1:]
    for place, word in enumerate(options, 1):
        if args[0] == "tune" and (word == "--serve" or word.startswith("--serve=")):
            command = [word.partition("=")[2]] if "=" in word else []
            return [*args[1:place], *command, *args[place + 1 :]]
    return None


# The exception that the parser raises; it moved from click into typer in 0.26.
_UsageError = typer.BadParameter.__mro__[1]

app = typer.Typer(
    cls=_Commands,
    help="Show how each nanosecond of a distributed PyTorch training step is spent, which rank delays the others and "
    "why, and which changes make your script faster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
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
    _module = import_module(f"flatout.cli.{_verb}")
    if hasattr(_module, "app"):
        app.add_typer(_module.app, name=_verb)
    else:
        app.command(_verb, cls=Command)(getattr(_module, _verb))
for _name, _function in BELOW_VERBS.items():
    app.command(_name, cls=Command)(getattr(import_module(f"flatout.cli.{_function}"), _function))


@cache
def parser() -> Any:
    """Return the parser of all commands. Typer builds it from their signatures, which takes a tenth of a second."""
    return typer.main.get_command(app)


def main() -> int:
    """Run the command in `sys.argv` and return its exit code. Tracebacks are shown only with FLATOUT_DEBUG=1."""
    _open_closed_streams()
    with clean_streams():
        try:
            try:
                code = parser()(prog_name="flatout", standalone_mode=False, default_map=_from_file())
            except SystemExit as stop:
                sys.stdout.flush()
                return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place that ends the process
            return _report(error)
        return code if isinstance(code, int) else 0


def _from_file() -> dict[str, Any]:
    """Return the options that `flatout.toml` in the working folder sets, unless the command needs none."""
    is_about_flatout = not sys.argv[1:] or sys.argv[1] in (WITHOUT_FILE, "--version", "--help", "-h")
    is_of_another_host = sys.argv[1:3] == ["doctor", "--capture"]  # as `doctor --hosts` asks for it
    return {} if is_about_flatout or is_of_another_host else default_map(Path(FILE), parser())


def _open_closed_streams() -> None:
    """Redirect streams that were closed at the start (`>&-`, `2>&-`) to /dev/null, so that writing never fails."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _report(error: BaseException) -> int:
    """Print the error on standard error, and return the exit code."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    if isinstance(error, OSError) and error.filename is None:
        # Python flushes standard output again when it exits, and would report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
    if isinstance(error, _UsageError):
        return _refuse(error)
    flatout_error = error if isinstance(error, FlatoutError) else _translated(error)
    print(f"error: {one_line(masked_text(str(flatout_error)))}", file=sys.stderr)
    if flatout_error.hint:
        print(f"hint: {one_line(masked_text(flatout_error.hint))}", file=sys.stderr)
    return flatout_error.exit_code


def _refuse(error: Any) -> int:
    """Print one line on what is wrong with the arguments, and which help explains them."""
    message = error.format_message().strip()
    if type(error).__name__ == "NoArgsIsHelpError":  # no argument was given, so the message is the help
        error.show()
        return 2
    if isinstance(error, InvalidValue) and error.param is not None:
        message = f"`{error.param.opts[0]}` {error.message}"
    if _is_from_file(error):
        message = f"`{FILE}`: {message}"
    print(f"error: {one_line(masked_text(message[:1].lower() + message[1:].rstrip('.')))}", file=sys.stderr)
    print(f"hint: {_command_of(error)} --help", file=sys.stderr)
    return 2


def _is_from_file(error: Any) -> bool:
    """Return whether the value that was refused stands in `flatout.toml`."""
    if error.ctx is None or getattr(error, "param", None) is None:
        return False
    source = error.ctx.get_parameter_source(error.param.name)
    return source is not None and source.name == "DEFAULT_MAP"


def _command_of(error: Any) -> str:
    if error.ctx is not None:
        return str(error.ctx.command_path)
    # The parser does not say which option lacks its value.
    is_command = len(sys.argv) > 1 and sys.argv[1] in VERBS
    return f"flatout {sys.argv[1]}" if is_command else "flatout"


def _translated(error: BaseException) -> FlatoutError:
    """Convert an unexpected error to a FlatoutError that can be shown."""
    import traceback

    if os.environ.get(Variable.DEBUG):
        traceback.print_exception(error)
    if isinstance(error, OSError):
        hint = "free space there, or write elsewhere" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return OutputError(f"{error.filename or 'standard output'}: {error.strerror or error}", hint=hint)
    if isinstance(error, MemoryError):
        return FlatoutError("this needs more memory than is free", hint="pass fewer or shorter traces")
    detail = traceback.format_exception_only(error)[-1].strip()
    return FlatoutError(
        f"internal error, please report it: {detail}",
        hint=f"run it again with {Variable.DEBUG}=1 for the traceback",
    )
