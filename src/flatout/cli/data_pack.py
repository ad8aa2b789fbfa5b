"""`flatout data pack`: many small files into shards; `verify`: a pack, read again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.help import Command
from flatout.cli.output import print_json, text_style
from flatout.cli.paths import path_argument
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from flatout.records.packing import PackResult

PACKING_SCHEMA = "flatout/packing"
CHECK_SCHEMA = "flatout/pack-check"
_MB = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the commands to `flatout data`."""
    app.command("pack", cls=Command)(pack)
    app.command("verify", cls=Command)(verify)


def pack(
    source: Annotated[
        Path, path_argument(metavar="SRC", help="Folder of images by class, or a CSV, Parquet or JSONL file.")
    ],
    folder: Annotated[Path, path_argument(metavar="DST", help="New folder for the shards.")],
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of SRC: image-folder, csv, parquet or jsonl. [default: by its name]",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[int, whole_number(least=1, most=100_000, help="Ranks of the training.")] = 8,
    workers: Annotated[int, whole_number(least=1, most=1024, help="Data loader workers per rank.")] = 4,
    shard_size: Annotated[
        int, whole_number(least=1, most=100_000, metavar="MB", help="Maximum mean size of a shard, in MB.")
    ] = 300,
    seed: Annotated[int, whole_number(help="Random seed for the order in the shards and for splits.")] = 0,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="Write the samples in the order of the source.")
    ] = False,
    split: Annotated[
        str | None, typer.Option(metavar="NAME=SHARE,...", help="Divide the samples, e.g. train=0.9,val=0.1.")
    ] = None,
    stratify: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Give each split the same share of each value of this column: label."),
    ] = None,
    resize_for: Annotated[
        int | None,
        whole_number(
            least=1,
            metavar="CROP",
            help="Shrink images whose shorter side is at least twice this crop (changes their pixels).",
        ),
    ] = None,
    path_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of paths. [default: path, file_name, ...]")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of labels. [default: label, class, ...]")
    ] = None,
    jobs: Annotated[
        int | None, whole_number(least=1, most=4096, help="Processes on this machine. [default: its cores]")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            metavar="ENGINE",
            help="Engine that writes the shards: local, ray[=ADDRESS] or dask[=ADDRESS], on a cluster.",
        ),
    ] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what packing will bring and what it would write.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Pack many small files into WebDataset shards, verified, and resume where an interrupted pack stopped.

    Says first what packing will bring: on a local disk, nothing. `flatout run --packed DST` lets an unmodified script
    read the shards.

    Examples:
      flatout data pack imagenet/train /lustre/packed --ranks 16 --workers 8
      flatout data pack images.csv packed --split train=0.9,val=0.1 --stratify label
    """
    from flatout.packing.engines import engine_of
    from flatout.packing.pack import pack as run
    from flatout.packing.request import PackRequest, parse_splits
    from flatout.report.packing_text import packed_text, planned_text
    from flatout.report.progress import ProgressLine
    from flatout.report.terminal import style_of

    request = PackRequest(
        source=source,
        folder=folder,
        kind=kind,
        num_ranks=ranks,
        num_workers=workers,
        shard_bytes=shard_size * _MB,
        seed=seed,
        keeps_order=keep_order,
        splits=parse_splits(split),
        stratify=stratify,
        crop=resize_for,
        path_column=path_column,
        label_column=label_column,
    )
    engine = engine_of(on, jobs)

    def show_plan(planned: PackResult) -> None:
        print(planned_text(planned, style_of(sys.stderr)), file=sys.stderr)

    with ProgressLine("packing") as progress:
        result = run(request, engine, is_dry_run=dry_run, before=show_plan, progress=progress.show)
    if json:
        print_json(PACKING_SCHEMA, result)
    elif not dry_run:
        print(packed_text(result, text_style()))


def verify(
    folder: Annotated[Path, path_argument(metavar="DST", help="Folder of `flatout data pack`.")],
    ranks: Annotated[int | None, whole_number(least=1, most=100_000, help="Ranks of the training.")] = None,
    workers: Annotated[
        int | None, whole_number(least=1, most=1024, help="Data loader workers per rank. [default: 1]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Read a pack again: compare each sample with its checksum, and look for uneven and for too few shards.

    Exits with 1 if a sample is damaged.

    Example: flatout data verify /lustre/packed --ranks 16 --workers 8
    """
    from flatout.packing.verify import verify_pack
    from flatout.report.packing_text import check_text

    check = verify_pack(folder, num_ranks=ranks, num_workers=workers)
    if json:
        print_json(CHECK_SCHEMA, check)
    else:
        print(check_text(check, text_style()))
    raise typer.Exit(1 if check.damaged else 0)
