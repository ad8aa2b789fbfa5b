"""`flatout data stage`: a data set to the disk of this node ahead of a job, or what does that on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.help import Command
from flatout.cli.output import print_json, text_style
from flatout.cli.paths import path_argument
from flatout.cli.values import whole_number

SCHEMA = "flatout/staging"
_IMAGE = "IMAGE-WITH-FLATOUT"


def register(app: typer.Typer) -> None:
    """Add the command to `flatout data`."""
    app.command("stage", cls=Command)(stage)


def stage(
    source: Annotated[Path, path_argument(metavar="SRC", help="Folder of a data set, or of `flatout data pack`.")],
    folder: Annotated[Path, path_argument(metavar="DST", help="Folder on a disk of this node.")],
    threads: Annotated[int, whole_number(least=1, most=1024, help="Number of files copied at the same time.")] = 8,
    emit: Annotated[
        str | None,
        typer.Option(
            metavar="slurm|kubernetes",
            help="Print a Slurm prolog, or a Kubernetes init container, that copies ahead of each job; copy nothing.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="For --emit: name of the data set. [default: name of SRC]")
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="For --emit slurm: copy for jobs of this partition only. Repeatable."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="For --emit kubernetes: image that has Flatout.")
    ] = None,
    claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="For --emit kubernetes: volume claim that is mounted at SRC.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Copy a data set to a disk of this node ahead of a job, verified, and resume where a copy stopped.

    Examples:
      flatout data stage /lustre/packed /local/packed
      flatout data stage /lustre/packed /local/packed --emit slurm > /etc/slurm/prolog.d/packed
    """
    from flatout.report.progress import ProgressLine
    from flatout.report.staging_text import staged_text
    from flatout.staging.stage import stage as run

    if emit is not None:
        print(_emitted(emit, name, source, folder, tuple(partition or ()), image, claim), end="")
        return
    with ProgressLine("copying") as progress:
        result = run(source, folder, num_threads=threads, progress=progress.show)
    if json:
        print_json(SCHEMA, result)
    else:
        print(staged_text(result, text_style()))


def _emitted(
    target: str,
    name: str | None,
    source: Path,
    folder: Path,
    partitions: tuple[str, ...],
    image: str | None,
    claim: str | None,
) -> str:
    from flatout.emit.staging import init_container, slurm_prolog
    from flatout.errors import UsageError
    from flatout.records.staging import DATA_SET_NAME

    data_set = name if name is not None else source.name.lower().replace("_", "-")
    if DATA_SET_NAME.fullmatch(data_set) is None:
        raise UsageError(
            f"`--name` must have at most 52 lower-case letters, digits and `-`, but is `{data_set}`",
            hint="pass another name, e.g. --name imagenet",
        )
    source, folder = source.absolute(), folder.absolute()
    if target == "slurm":
        return slurm_prolog(data_set, source, folder, partitions=partitions)
    if target == "kubernetes":
        return init_container(data_set, source, folder, image=image or _IMAGE, claim=claim or "DATA-CLAIM")
    raise UsageError(f"`--emit` must be slurm or kubernetes, but is `{target}`")
