"""The contracts of machines and clusters: checks, plans, schedules and costs."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.records.attempts import SkippedRow
from flatout.records.buying import BuyOrRent, OwnershipCost
from flatout.records.carbon import CarbonAdvice, CarbonStart
from flatout.records.ceilings import Ceilings, CollectiveFit, LoadedLink, Measurement, PeerDifference, WrongResult
from flatout.records.chargeback import BudgetState, Chargeback, CostLine, TeamCost
from flatout.records.cost import Estimate
from flatout.records.doctor import (
    CheckResult,
    ComparedFact,
    DoctorReport,
    Gain,
    HostDifference,
    HostsReport,
    PcieLink,
    Topology,
    TopologyNode,
    TopologyPair,
)
from flatout.records.goal import Goal, GoalAnswer, GoalEstimate, GoalOption
from flatout.records.network import NetworkAnswer, NetworkBill
from flatout.records.placed_job import PlacedJob
from flatout.records.placement import ExchangeTime, LinkLoad, Placement, PlannedPlacement, SlowLinks
from flatout.records.plan import (
    ExcludedLayouts,
    GroupRegret,
    Layout,
    Plan,
    PlanEvaluation,
    PlannedLayout,
    SourceAccuracy,
)
from flatout.records.power import CapAdvice, CapPoint, Ratio
from flatout.records.replay import (
    MeasureDifference,
    PolicyDifference,
    PolicyReplay,
    ReplayReport,
    ReplaySeries,
    SizeWait,
    TeamUse,
)
from flatout.records.serving_plan import (
    CacheNeed,
    RefusedOption,
    ServedLoad,
    ServingAccuracy,
    ServingOption,
    ServingPlan,
)
from flatout.records.sharing import Beside, GpuSlice, PairSharing, SharingResult
from flatout.records.spot import Availability, SpotAdvice, StrategyResult
from flatout.records.watch import DrainCost, FailureProbability, GpuAdvice, NodeHealth, NodeSign
from flatout.schedule.live.actions import Action, NodeReservation
from flatout.schedule.live.controller import Cycle
from flatout.submit import Submitted
from generators.contracts.contract import Contract, contract

CONTRACTS: Mapping[str, Contract] = {
    "doctor_json": contract(
        "flatout/doctor", DoctorReport, CheckResult, Gain, Topology, TopologyNode, PcieLink, TopologyPair, version=2
    ),
    "doctor_hosts_json": contract("flatout/doctor-hosts", HostsReport, HostDifference, ComparedFact, version=2),
    "ceilings_json": contract(
        "flatout/ceilings", Ceilings, Measurement, LoadedLink, CollectiveFit, PeerDifference, WrongResult
    ),
    "node_health_json": contract("flatout/node-health", NodeHealth, GpuAdvice, NodeSign, DrainCost, FailureProbability),
    "plan_json": contract(
        "flatout/plan",
        *(Plan, PlannedLayout, Layout, ExcludedLayouts, GoalAnswer, Goal, GoalOption, GoalEstimate),
        *(NetworkAnswer, NetworkBill, PlannedPlacement, SlowLinks),
    ),
    "plan_evaluation_json": contract("flatout/plan-evaluation", PlanEvaluation, SourceAccuracy, GroupRegret),
    "placement_json": contract("flatout/placement", PlacedJob, Layout, Placement, ExchangeTime, LinkLoad),
    "serving_plan_json": contract(
        "flatout/serving-plan", ServingPlan, ServedLoad, ServingOption, RefusedOption, CacheNeed, ServingAccuracy
    ),
    "sharing_json": contract("flatout/sharing", SharingResult, GpuSlice, Beside, PairSharing),
    "submission_json": contract("flatout/submission", Submitted),
    "schedule_cycle_json": contract("flatout/schedule-cycle", Cycle, Action, NodeReservation),
    "replay_json": contract(
        "flatout/replay",
        *(ReplayReport, PolicyReplay, SizeWait, TeamUse, ReplaySeries, PolicyDifference, MeasureDifference),
    ),
    "cost_json": contract("flatout/cost", Chargeback, TeamCost, CostLine, Estimate, BudgetState, SkippedRow),
    "buy_or_rent_json": contract("flatout/buy-or-rent", BuyOrRent, OwnershipCost, Estimate),
    "power_cap_json": contract("flatout/power-cap", CapAdvice, CapPoint, Ratio),
    "carbon_json": contract("flatout/carbon", CarbonAdvice, CarbonStart),
    "spot_json": contract("flatout/spot", SpotAdvice, Availability, StrategyResult),
}
