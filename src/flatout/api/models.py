"""`plan` and `replay`: what a training or a cluster would do, by a model, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.api.arguments import AnyPath, Progress, Say, check_range, no_note, optional_path, path_of
from flatout.errors import UsageError

if TYPE_CHECKING:
    from flatout.api.results import PlanResult, ReplayResult
    from flatout.schedule.cluster import Cluster

MAX_LAYOUTS = 100
MAX_NODES = 100_000
MAX_GPUS_PER_NODE = 1024
MAX_SEEDS = 1000
REPLAY_EXAMPLE = "flatout schedule replay jobs.csv --nodes 64 --gpus-per-node 8"


def plan(
    model: str,
    cluster: str,
    *,
    global_batch: int = 1024,
    seq: int = 4096,
    document: int = 0,
    images: int = 0,
    precision: str = "bf16",
    optimizer: str = "adam",
    gradients: str | None = None,
    pure_bf16: bool = False,
    lora_rank: int = 0,
    lora_targets: str = "attention",
    base_bits: int = 16,
    freeze: Sequence[str] = (),
    fix: Sequence[str] = (),
    target: str = "any",
    calibrate: AnyPath | None = None,
    risk: float = 0.1,
    top: int = 10,
    goal: str | None = None,
    gpu_price: float | None = None,
    prices: AnyPath | None = None,
    terms: str = "on-demand",
    region: str | None = None,
    fabric: str | None = None,
    oversubscription: float | None = None,
    leaf_nodes: int | None = None,
    torus: str | None = None,
    note: Say = no_note,
) -> PlanResult:
    """Rank all valid parallel layouts of a training run by predicted step time and memory.

    `model` is a name, a `config.json`, `FILE.py:NAME` (the file is executed), or `layers=N,hidden=N,heads=N,...`;
    `cluster` is `SYSTEMxGPUS`, such as `h100x512`, or a TOML file. A step trains `global_batch` sequences of `seq`
    tokens, each with `images` images if the model sees. `fix` holds texts such as `tp=8`, `target` is the framework of
    `--for`, and `risk` is the probability of running out of memory, as a share, below which layouts are offered; `top`
    of them are returned. `calibrate` is a file of measurements. `goal` is a text such as `100B tokens in 30 days`, for
    which `gpu_price`, `prices`, `terms` and `region` give money and carbon; `fabric`, `oversubscription`, `leaf_nodes`
    and `torus` describe another network. The other arguments describe the training as the options of `flatout plan` do.
    `note` is called with a line about each input that was not used.

    Raises UsageError for an unknown model, cluster or value, and InputError for a file that cannot be used.
    """
    from flatout import plan_pipeline as pipeline
    from flatout.api.results import PlanResult

    check_range("risk", risk, least=1e-12, most=1.0)
    check_range("top", top, least=1, most=MAX_LAYOUTS)
    check_range("global_batch", global_batch, least=1)
    check_range("seq", seq, least=1)
    goal_request = pipeline.requested_goal(
        pipeline.GoalRequest(
            text=goal, usd_per_gpu_hour=gpu_price, prices=optional_path(prices), terms=terms, region=region
        ),
        global_batch=global_batch,
        seq=seq,
    )
    request = pipeline.PlanRequest(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        seq=seq,
        document=document,
        images=images,
        precision=precision,
        fixed=tuple(fix),
        calibrate=optional_path(calibrate),
        risk=risk,
        target=target,
        training=pipeline.requested_training(
            optimizer=optimizer,
            lora_rank=lora_rank,
            lora_targets=lora_targets,
            base_bits=base_bits,
            freeze=freeze,
            gradients=gradients,
            is_pure_bf16=pure_bf16,
        ),
        fabric=pipeline.requested_fabric(fabric, oversubscription, leaf_nodes, torus),
    )
    context = pipeline.search_context(request, note)
    result, context = pipeline.planned(context, goal_request, num_layouts=top, fixed=request.fixed, note=note)
    result = pipeline.with_goal(result, context, goal_request, request.fixed)
    result = pipeline.with_network(result, context, request.fabric, request.fixed)
    result = pipeline.with_placement(result, context)
    return PlanResult.of(result, _context=context, _typed=("flatout", "plan", "--model", model, "--cluster", cluster))


def replay(
    jobs: AnyPath,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    cluster: AnyPath | None = None,
    policies: Sequence[str] = ("fifo",),
    checkpoint_s: float = 1800.0,
    restart_s: float = 180.0,
    failures: float = 0.0,
    repair_s: float = 14_400.0,
    seeds: int = 1,
    starved_after_s: float = 1_209_600.0,
    sharing: Sequence[AnyPath] = (),
    progress: Progress | None = None,
) -> ReplayResult:
    """Replay a job history under scheduling policies: completion times, utilization, goodput, fairness, money.

    `jobs` is a CSV, the output of sacct, or a trace of Philly, openb, Helios, Acme or Gavel. The cluster is `nodes`
    with `gpus_per_node` each, or the file `cluster`. The first of `policies` is the baseline of the differences.
    `checkpoint_s` is the work between two checkpoints, `restart_s` the time that a stopped job needs to start again,
    `failures` the node failures per 1,000 node-days, each repaired after `repair_s`, over `seeds` random seeds, and a
    job is starved after waiting longer than `starved_after_s`. `sharing` are results of `flatout bench --share`, by
    which jobs with a share of a GPU take longer. `progress` is called with the jobs done and their total.

    Raises UsageError for a policy or cluster that does not exist, and InputError for a file that cannot be used.
    """
    from flatout.api.results import ReplayResult
    from flatout.schedule.engine import FailureModel
    from flatout.schedule.jobs import Assumptions
    from flatout.schedule.load.detect import load
    from flatout.schedule.policies.names import check
    from flatout.schedule.replay import replay as replay_history
    from flatout.schedule.sharing import read_sharing, with_sharing

    check_range("seeds", seeds, least=1, most=MAX_SEEDS)
    check_range("failures", failures, least=0.0)
    for name, value_s in (("restart_s", restart_s), ("repair_s", repair_s), ("starved_after_s", starved_after_s)):
        check_range(name, value_s, least=0.0)
    check_range("checkpoint_s", checkpoint_s, least=1.0)
    machine = _cluster(nodes, gpus_per_node, optional_path(cluster))
    check(list(policies))
    failure_model = FailureModel(per_1000_node_days=failures, repair_s=repair_s) if failures else None
    measured = [read_sharing(path_of(path)) for path in sharing]
    history = load(path_of(jobs))
    report = replay_history(
        with_sharing(history, measured) if measured else history,
        machine,
        list(policies),
        assumptions=Assumptions(checkpoint_s=checkpoint_s, restart_s=restart_s),
        failures=failure_model,
        num_seeds=seeds,
        starved_after_s=starved_after_s,
        progress=progress,
    )
    return ReplayResult.of(report, _typed=("flatout", "schedule", "replay", str(jobs)))


def _cluster(nodes: int | None, gpus_per_node: int | None, path: Path | None) -> Cluster:
    from flatout.schedule.cluster import read_cluster, uniform
    from flatout.schedule.load.openb import nodes as read_nodes

    if path is not None:
        if nodes is not None or gpus_per_node is not None:
            raise UsageError("a cluster is either --cluster FILE or --nodes with --gpus-per-node, but got both")
        is_csv = path.name.removesuffix(".gz").endswith(".csv")
        return read_nodes(path) if is_csv else read_cluster(path)
    if nodes is None or gpus_per_node is None:
        raise UsageError(
            "a replay needs a cluster: --nodes with --gpus-per-node, or --cluster FILE",
            hint=f"{REPLAY_EXAMPLE} --policy flatout",
        )
    check_range("nodes", nodes, least=1, most=MAX_NODES)
    check_range("gpus_per_node", gpus_per_node, least=1, most=MAX_GPUS_PER_NODE)
    return uniform(nodes, gpus_per_node)
