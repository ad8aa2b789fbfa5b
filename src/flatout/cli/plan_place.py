"""`flatout plan place`: the order of a layout's ranks on the nodes of a network."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.fabric_options import FABRIC, LEAF_NODES, OVERSUBSCRIPTION, TORUS
from flatout.cli.help import Command
from flatout.cli.next_command import repeated
from flatout.cli.output import print_json, text_style
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from flatout.records.placed_job import PlacedJob


def register(app: typer.Typer) -> None:
    app.command(cls=Command)(place)


def place(
    model: Annotated[str, typer.Option(metavar="NAME", help="As for `flatout plan`.", show_default=False)],
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="SYSTEMxGPUS, e.g. h100x64, or a TOML file.", show_default=False)
    ],
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARAMETER=VALUE", help="Place the fastest layout with this value: tp=8, pp=4. Repeatable."
        ),
    ] = None,
    global_batch: Annotated[int, whole_number(least=1, help="Sequences per step.")] = 1024,
    seq: Annotated[int, whole_number(least=1, help="Tokens per sequence.")] = 4096,
    precision: Annotated[str, typer.Option(metavar="TYPE", help="Data type: bf16, fp16, fp32, fp8 or fp4.")] = "bf16",
    fabric: Annotated[str | None, FABRIC] = None,
    oversubscription: Annotated[float | None, OVERSUBSCRIPTION] = None,
    leaf_nodes: Annotated[int | None, LEAF_NODES] = None,
    torus: Annotated[str | None, TORUS] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="HOSTS", help="Names of the nodes, e.g. n[1-4] or $SLURM_JOB_NODELIST.")
    ] = None,
    switches: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Slurm's topology.conf: the leaf switch of each node in --nodes."),
    ] = None,
    emit: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Also write the order for slurm, torchrun or kubernetes. Repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For --emit: folder to write into.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Place a layout's ranks on nodes so that the slow links of the network carry as little as possible.

    Example: flatout plan place --model llama3-70b --cluster h100x64 --oversubscription 4 --leaf-nodes 2
    """
    from flatout import plan_pipeline as pipeline

    request = pipeline.PlaceRequest(
        nodes=nodes,
        switches=switches,
        emit=tuple(target for text in emit or () for target in text.split(",") if target),
        out=out,
        force=force,
    )
    request.check()
    plan_request = pipeline.PlanRequest(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        seq=seq,
        precision=precision,
        fixed=tuple(fix or ()),
        fabric=pipeline.requested_fabric(fabric, oversubscription, leaf_nodes, torus),
    )
    job = pipeline.placed(plan_request, request, _note)
    pipeline.write_files(job, request, _note)
    if json:
        print_json("flatout/placement", job)
        return
    from flatout.report.placement_text import placement_text

    print(placement_text(job, style=text_style(), next_command=shlex.join(_next_command(job, has_emitted=bool(emit)))))


def _next_command(job: PlacedJob, *, has_emitted: bool) -> list[str]:
    """Return the command that writes the order, or if it is written or unchanged, the one that plans the layout."""
    if has_emitted or not job.placement.is_changed:
        return ["flatout", "bench", "--only", "pair_send"]
    words = repeated(sys.argv[1:], without=("--emit", "--out"))
    named = [] if "--nodes" in " ".join(words) else ["--nodes", "HOSTS"]
    return [*words, *named, "--emit", "slurm"]


def _note(line: str) -> None:
    print(line, file=sys.stderr)
