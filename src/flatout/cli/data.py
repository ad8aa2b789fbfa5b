"""`flatout data profile`: time each stage of making a job's batches; `show`: read it again; `cache`: a cache's use."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli import data_pack, data_stage
from flatout.cli.help import Command, Group
from flatout.cli.output import print_json, text_style
from flatout.cli.paths import path_argument

if TYPE_CHECKING:
    from flatout.records.loading import LoadingProfile


class DataGroup(Group):
    """The commands on data, by what they do."""

    headings = {  # noqa: RUF012 - as in the class above
        "Measure": ("profile", "show"),
        "Prepare": ("pack", "verify", "stage"),
        "Cache": ("cache",),
    }


app = typer.Typer(
    cls=DataGroup,
    help="Look at the data in front of the GPU: what each sample costs, stage by stage; and prepare it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SCHEMA = "flatout/data-profile"
_Html = Annotated[Path | None, typer.Option(metavar="FILE", readable=False, help="Write the result as an HTML page.")]


@app.command(cls=Command)
def profile(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Training command, after `--`.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the recording. [default: flatout-out/TIME]")
    ] = None,
    html: _Html = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON after the job's output.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing recording or page.")] = False,
) -> None:
    """Run a training command, unchanged, and time each stage of making its batches.

    The stages are those of torch's DataLoader, in its workers or in the training process: opening and reading files,
    decompressing, decoding, each transform, the data set's own code, collating and sending. Exits with the command's
    own code.

    Example: flatout data profile -- python train.py --epochs 1
    """
    from flatout.launch import end_like
    from flatout.loading_pipeline import profile_loading
    from flatout.report.files import check_new

    if html is not None:
        check_new(html, force=force)
    recorded = profile_loading(command, out=out, force=force)
    if recorded.profile is not None:
        if html is not None:
            _write_page(recorded.profile, html, force=force)
        _report(recorded.profile, command, recorded.ended.code, json=json)
    raise typer.Exit(end_like(recorded.ended))


@app.command(cls=Command)
def show(
    folder: Annotated[Path, path_argument(metavar="DIR", help="Folder that `flatout data profile` has recorded.")],
    html: _Html = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing page.")] = False,
) -> None:
    """Show a recording of `flatout data profile` again.

    Example: flatout data show flatout-out/2026-11-30T10-00-00
    """
    from flatout.loading_pipeline import read_loading
    from flatout.report.loading_text import loading_text

    profile = read_loading(folder)
    if html is not None:
        _write_page(profile, html, force=force)
    if json:
        print_json(SCHEMA, profile)
    else:
        print(loading_text(profile, text_style()))


@app.command(cls=Command)
def cache(
    folder: Annotated[Path, path_argument(metavar="DIR", help="Folder of `flatout run --data-cache`.")],
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show what a node-local cache holds, and how often its copies were read.

    Example: flatout data cache /local/cache
    """
    from flatout.report.data_cache_text import cache_text
    from flatout.run.data_cache import read_cache_use

    use = read_cache_use(folder)
    if json:
        print_json("flatout/data-cache", use)
    else:
        print(cache_text(use, text_style()))


def _write_page(profile: LoadingProfile, html: Path, *, force: bool) -> None:
    from flatout.cli.output import typed_command
    from flatout.report.files import write_new
    from flatout.report.loading_html import loading_html

    write_new(html, loading_html(profile, typed_command()), force=force)
    print(f"flatout: wrote {html}", file=sys.stderr)


data_pack.register(app)
data_stage.register(app)


def _report(profile: LoadingProfile, command: list[str], code: int | None, *, json: bool) -> None:
    """Print the result: JSON to standard output, text to standard error, separate from the job's output.

    `code` is the command's exit code: one that failed is not to be tuned next.
    """
    from flatout.report.loading_text import loading_text
    from flatout.report.terminal import style_of
    from flatout.secrets import masked_command

    sys.stdout.flush()
    if json:
        print_json(SCHEMA, profile, pretty=False)
        return
    print(loading_text(profile, style_of(sys.stderr)), file=sys.stderr)
    if code:
        print(f"the command failed with exit code {code}: correct it before you tune it", file=sys.stderr)
        return
    print(f"next: flatout tune -- {shlex.join(masked_command(command))}", file=sys.stderr)
