"""Answer `flatout plan --fabric`: what another network does to the step, and what it saves or costs."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from flatout.catalog.prices import all_prices
from flatout.cost.networks import network_bill
from flatout.plan.fabrics import CLUSTERS_OWN, FabricRequest, with_fabric
from flatout.plan.search import plan as search
from flatout.plan.search_context import SearchContext
from flatout.records.network import NetworkAnswer
from flatout.records.plan import Plan

HOURS_PER_YEAR = 8766.0
_FULL = FabricRequest(fabric="fat-tree", oversubscription=1.0)


def with_network(plan: Plan, context: SearchContext, request: FabricRequest, fixed: tuple[str, ...]) -> Plan:
    """Return the plan with what its network does to the step, if the user asked for a network."""
    if request == CLUSTERS_OWN:
        return plan
    cluster = context.spec.cluster
    # The leaf switches of this network may have another number of nodes.
    full_cluster = with_fabric(msgspec.structs.replace(cluster, pod_gpus=0, torus=()), _FULL)
    full_context = replace(context, spec=replace(context.spec, cluster=full_cluster))
    full_s = search(full_context, num_layouts=1, fixed=fixed).layouts[0].step_time_s
    step_s = plan.layouts[0].step_time_s
    price = all_prices().gpu(cluster.gpu)
    slower_usd = None
    if price is not None:
        slower_usd = cluster.num_gpus * price.typical * HOURS_PER_YEAR * (1.0 - full_s / step_s)
    has_switches = not cluster.torus
    return msgspec.structs.replace(
        plan,
        network=NetworkAnswer(
            fabric=cluster.fabric,
            oversubscription=cluster.oversubscription,
            leaf_nodes=cluster.pod_gpus // cluster.gpus_per_node if has_switches else None,
            shape=cluster.torus,
            step_time_s=step_s,
            full_step_time_s=full_s,
            bill=network_bill(cluster),
            full_bill=network_bill(full_cluster),
            slower_usd_per_year=slower_usd,
            usd_per_gpu_hour=None if price is None else price.typical,
        ),
    )
