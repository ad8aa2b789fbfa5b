"""`flatout plan serve`: the memory of a served language model, and the fewest GPUs for a load."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.help import Command
from flatout.cli.output import print_json, text_style, typed_command
from flatout.cli.values import amount, whole_number

if TYPE_CHECKING:
    from flatout.records.serving_plan import ServingPlan

_MOST_TOKENS = 10_000_000


def register(app: typer.Typer) -> None:
    app.command(cls=Command)(serve)


def serve(
    model: Annotated[str, typer.Option(metavar="NAME", help="As for `flatout plan`.", show_default=False)],
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="GPU, e.g. h100, or a TOML file as for --cluster.", show_default=False)
    ],
    rate: Annotated[
        float,
        amount(
            metavar="N",
            positive=True,
            most=1e6,
            help="Requests that come in a second, in the mean.",
            show_default=False,
        ),
    ],
    input_tokens: Annotated[
        int, whole_number("--input", least=1, most=_MOST_TOKENS, help="Tokens of a prompt, in the mean.")
    ] = 1024,
    output_tokens: Annotated[
        int, whole_number("--output", least=1, most=_MOST_TOKENS, help="Tokens of an answer, in the mean.")
    ] = 256,
    ttft: Annotated[
        Duration | None,
        duration("--ttft", instead_of="ms", help="Limit of the mean time to the first token, e.g. 500ms."),
    ] = None,
    itl: Annotated[
        Duration | None,
        duration("--itl", instead_of="ms", help="Limit of the mean time between tokens, e.g. 50ms."),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(metavar="TYPE", help="Type of the weights: bf16, fp16, fp32, fp8, fp8-ffn, int8, int4 or fp4."),
    ] = "bf16",
    kv_cache: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the KV cache: bf16, fp16, fp32, fp8 or int8.  [default: 16 bits]",
            show_default=False,
        ),
    ] = None,
    max_batched_tokens: Annotated[
        int,
        whole_number(
            least=1,
            most=_MOST_TOKENS,
            help="Tokens that the engine computes in one step at most; without chunked prefill its longest prompt.",
        ),
    ] = 8192,
    max_seqs: Annotated[
        int | None,
        whole_number(
            least=1,
            most=_MOST_TOKENS,
            help="Requests that the engine holds at a time at most. [default: 1024, with memory to sample 256]",
            show_default=False,
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the plan as an HTML page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the fewest GPUs that serve a language model at a request rate within limits of latency.

    Exits with code 0 if there are enough GPUs of this kind, otherwise with 1.

    Example: flatout plan serve --model llama3.1-70b --gpu h100 --rate 5 --ttft 500ms --itl 50ms --weights fp8
    """
    from flatout.plan_pipeline.serving import ServingRequest, planned_serving
    from flatout.records.serving_plan import ServedLoad
    from flatout.report.files import check_new

    if html is not None:
        check_new(html, force=force)
    load = ServedLoad(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        rate_per_s=rate,
        most_ttft_s=None if ttft is None else ttft.seconds,
        most_itl_s=None if itl is None else itl.seconds,
    )
    request = ServingRequest(
        model=model,
        gpu=gpu,
        weights=weights,
        cache=kv_cache,
        load=load,
        step_tokens=max_batched_tokens,
        most_held=max_seqs,
    )
    plan = planned_serving(request, _note)
    next_command = shlex.join(_next_command(plan, model))
    if html is not None:
        _write_page(plan, html, next_command, force=force)
    if json:
        print_json("flatout/serving-plan", plan)
    else:
        from flatout.report.serving_plan_text import serving_plan_text

        print(serving_plan_text(plan, style=text_style(), next_command=next_command))
    raise typer.Exit(0 if plan.options else 1)


def _write_page(plan: ServingPlan, html: Path, next_command: str, *, force: bool) -> None:
    from flatout.report.files import write_new
    from flatout.report.serving_plan_html import serving_plan_html

    write_new(html, serving_plan_html(plan, typed_command(), next_command=next_command), force=force)
    _note(f"page: {html}")


def _next_command(plan: ServingPlan, model: str) -> list[str]:
    """Return the command that measures one copy of the best option on a real server."""
    if not plan.options:
        return ["flatout", "plan", "serve", "--help"]
    serve_words = ["vllm", "serve", model, "--tensor-parallel-size", str(plan.options[0].tensor_parallel)]
    limits = [
        f"p99 {name}<{most_s * 1e3:g}ms"
        for name, most_s in (("ttft", plan.load.most_ttft_s), ("itl", plan.load.most_itl_s))
        if most_s is not None
    ]
    slo = ", ".join(limits) or "p99 ttft<1s"
    return ["flatout", "tune", "--serve", shlex.join(serve_words), "--load", "load.toml", "--slo", slo]


def _note(line: str) -> None:
    print(line, file=sys.stderr)
