"""Place the ranks of a layout: for `flatout plan place`, and in short for `flatout plan`.

In: a model on a cluster, or a plan. Out: the layout with the best order of its ranks on the nodes, or the plan with
what a quick search of orders finds for its first layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout.emit.placement import PLACEMENT_TARGETS
from flatout.emit.write import write
from flatout.errors import InputError, UsageError
from flatout.placement import groups
from flatout.placement.fabrics import MOST_RANKS, fabric_of
from flatout.placement.groups import LayoutDegrees
from flatout.placement.place import place
from flatout.placement.switches import leaf_switches
from flatout.plan.details import inputs_of
from flatout.plan.search import plan as search
from flatout.plan.search_context import SearchContext
from flatout.plan.volumes import bytes_to_neighbour, group_sizes
from flatout.plan_pipeline.request import PlanRequest, search_context
from flatout.records.placed_job import PlacedJob
from flatout.records.placement import Fabric, GroupExchange, LinkKind, LinkLoad, Pattern, PlannedPlacement, SlowLinks
from flatout.records.plan import Layout, Plan
from flatout.schedule.live.hostlist import expanded

_PATTERNS = {
    "tensor": Pattern.COLLECTIVE_RING,
    "context": Pattern.RING,
    "data": Pattern.COLLECTIVE_RING,
    "data_shards": Pattern.COLLECTIVE_RING,
    "data_copies": Pattern.COLLECTIVE_RING,
    "expert_data": Pattern.COLLECTIVE_RING,
    "expert": Pattern.ALL_TO_ALL,
    "pipeline": Pattern.CHAIN,
}


_SLOW = (LinkKind.CORE, LinkKind.CABLE, LinkKind.ADAPTER)  # kinds of links outside nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """The nodes, and what to write."""

    nodes: str | None = None  # names, as Slurm writes lists of them
    switches: Path | None = None  # Slurm's topology.conf, or the output of `scontrol show topology`
    emit: tuple[str, ...] = ()
    out: Path = Path()
    force: bool = False

    def check(self) -> None:
        """Raise UsageError if a target is unknown, or needs the names of the nodes."""
        for target in self.emit:
            if target not in PLACEMENT_TARGETS:
                raise UsageError(f"--emit must be one of {', '.join(PLACEMENT_TARGETS)}, but is `{target}`")
        if self.emit and self.nodes is None:
            raise UsageError(
                "`--emit` writes the names of nodes, and needs --nodes", hint='--nodes "$SLURM_JOB_NODELIST"'
            )
        if self.switches is not None and self.nodes is None:
            raise UsageError("`--switches` needs the names of the nodes", hint='--nodes "$SLURM_JOB_NODELIST"')


def placed(plan_request: PlanRequest, request: PlaceRequest, note: Callable[[str], object]) -> PlacedJob:
    """Return the placement of the fastest layout that the request allows."""
    context = search_context(plan_request, note)
    fabric = _fabric(context, request)
    planned = search(context, num_layouts=1, fixed=plan_request.fixed).layouts[0]
    exchanges = exchanges_of(context, planned.layout)
    layout = planned.layout
    return PlacedJob(
        workload=context.spec.workload.name,
        cluster=context.spec.cluster.name,
        layout=layout,
        step_time_s=planned.step_time_s,
        placement=place(fabric, exchanges, _dimensions(layout)),
    )


def with_placement(plan: Plan, context: SearchContext) -> Plan:
    """Return the plan with the placement of its first layout, if the cluster has several nodes and all are full."""
    cluster = context.spec.cluster
    has_full_nodes = cluster.num_gpus % cluster.gpus_per_node == 0
    has_several_nodes = cluster.num_gpus > cluster.gpus_per_node
    if not has_several_nodes or not has_full_nodes or cluster.num_gpus > MOST_RANKS:
        return plan
    layout = plan.layouts[0].layout
    placement = place(fabric_of(cluster), exchanges_of(context, layout), _dimensions(layout), is_quick=True)
    return msgspec.structs.replace(
        plan,
        placement=PlannedPlacement(
            fabric=placement.fabric,
            ranks_of_nodes=placement.ranks_of_nodes,
            is_changed=placement.is_changed,
            keeps_nodes_whole=placement.keeps_nodes_whole,
            seconds_before=placement.seconds_before,
            seconds_after=placement.seconds_after,
            seconds_with_node_order=placement.seconds_with_node_order,
            slow_links=_slow_links(placement.links),
        ),
    )


def _slow_links(links: Sequence[LinkLoad]) -> tuple[SlowLinks, ...]:
    """Return the bytes on the links outside nodes, for each kind that carries any."""
    by_kind = []
    for kind in _SLOW:
        before = [link.bytes_before for link in links if link.kind == kind]
        after = [link.bytes_after for link in links if link.kind == kind]
        if before:
            by_kind.append(
                SlowLinks(
                    kind=kind,
                    busiest_before=max(before),
                    busiest_after=max(after),
                    sum_before=sum(before),
                    sum_after=sum(after),
                )
            )
    return tuple(by_kind)


def _dimensions(layout: Layout) -> tuple[int, ...]:
    """Return the degrees in the order in which ranks are numbered."""
    return layout.tp, layout.cp, layout.dp, layout.pp


def write_files(job: PlacedJob, request: PlaceRequest, note: Callable[[str], object]) -> None:
    """Write the order for each target, and report each file with `note`."""
    for target in request.emit:
        for emitted in PLACEMENT_TARGETS[target](job.placement):
            note(f"{target}: {write(emitted, request.out, force=request.force)}")
            for remark in emitted.notes:
                note(f"{target}: {remark}")


def exchanges_of(context: SearchContext, layout: Layout) -> tuple[GroupExchange, ...]:
    """Return what the groups of the layout exchange in a step."""
    inputs = inputs_of(context, layout)
    degrees = LayoutDegrees(tp=layout.tp, cp=layout.cp, dp=layout.dp, pp=layout.pp, ep=layout.ep, etp=layout.etp)
    shards = int(group_sizes(inputs)["data_shards"])
    inner, outer = groups.split(groups.data_groups(degrees), shards) if shards > 1 else ((), ())
    members = {
        "tensor": groups.tensor_groups(degrees),
        "context": groups.context_groups(degrees),
        "data": groups.data_groups(degrees),
        "data_shards": inner,
        "data_copies": outer,
        "expert": groups.expert_groups(degrees),
        "expert_data": groups.expert_data_groups(degrees),
        "pipeline": groups.pipeline_groups(degrees),
    }
    return tuple(
        GroupExchange(
            name=name,
            pattern=_pattern(name, layout),
            groups=members[name],
            bytes_to_neighbour=num_bytes,
        )
        for name, num_bytes in bytes_to_neighbour(inputs).items()
    )


def _pattern(name: str, layout: Layout) -> Pattern:
    is_interleaved = name == "pipeline" and layout.vpp > 1 and layout.pp > 2
    return Pattern.CLOSED_CHAIN if is_interleaved else _PATTERNS[name]


def _fabric(context: SearchContext, request: PlaceRequest) -> Fabric:
    cluster = context.spec.cluster
    if request.nodes is None:
        return fabric_of(cluster)
    nodes = _node_names(request.nodes)
    leaves = () if request.switches is None else leaf_switches(request.switches, nodes, expanded)
    return fabric_of(cluster, nodes, leaves)


def _node_names(text: str) -> Sequence[str]:
    try:
        nodes = expanded(text)
    except ValueError as error:
        raise InputError(
            f"`--nodes` must be a list of hosts, but {error}", hint="for example: --nodes n[1-4]"
        ) from None
    repeated = [node for node in nodes if nodes.count(node) > 1][:1]
    if repeated:
        raise InputError(f"`--nodes` names `{repeated[0]}` more than once", hint="name each node once")
    return nodes
