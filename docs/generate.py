"""The parts of the docs that are made from the code when the site is built, so that they cannot drift from it.

A page holds `<!-- generated: NAME -->` on a separate line; `on_page_markdown`, which MkDocs calls for each page, puts
the Markdown of `GENERATORS[NAME]` there.
"""

from __future__ import annotations

import inspect
import io
import re
import textwrap
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import flatout.api
from flatout.api import results as api_results
from flatout.catalog import all_gpu_facts, all_models, all_systems
from flatout.catalog.carbon import all_grids
from flatout.catalog.fabrics import network_prices as all_network_prices
from flatout.catalog.failures import known_failures
from flatout.catalog.links import all_gpu_links, all_nics, all_pcie
from flatout.catalog.prices import Price, Range, all_prices
from flatout.change.catalogue import FAMILIES, KNOBS
from flatout.change.forbidden import FORBIDDEN
from flatout.cli import parser
from flatout.cli.help import NO_WRAP
from flatout.compress.catalogue import ROWS
from flatout.conditions.words import WORDS
from flatout.diagnose.explain import Explanation, Explanations, explanation, listed
from flatout.doctor.checks import CHECKS
from flatout.nccl_tuner.candidates import all_settings, all_spaces, start_of_choices
from flatout.plan.counts import num_active_parameters, num_parameters
from flatout.plan.huggingface import from_values
from flatout.plan.models.uniform import layer_kinds
from flatout.predict.collective_time import Link
from flatout.predict.gradient_exchange import COMPRESSIONS, MIN_GAIN, gain
from flatout.records.attempts import SkippedRow
from flatout.records.buying import BuyOrRent, OwnershipCost
from flatout.records.carbon import CarbonAdvice, CarbonStart
from flatout.records.ceilings import Ceilings, CollectiveFit, LoadedLink, Measurement, PeerDifference, WrongResult
from flatout.records.change import Knob, Patch, ValidRange
from flatout.records.chargeback import BudgetState, Chargeback, CostLine, TeamCost
from flatout.records.collective_table import CollectiveTable, TableRow
from flatout.records.comparison import (
    Arm,
    CallDifference,
    Comparison,
    ComparisonGate,
    EnvironmentDifference,
    PartDifference,
    Power,
    TrainingCheck,
)
from flatout.records.compression import (
    Compression,
    Evaluation,
    LossVerdict,
    MaxLoss,
    SpeedAt,
    UnofferedVariant,
    VariantResult,
)
from flatout.records.cost import Estimate
from flatout.records.data_cache import CacheCounts, CacheUse
from flatout.records.diagnosis import (
    Blame,
    DeviceDiagnosis,
    Diagnosis,
    Finding,
    GroupCommunication,
    JobSummary,
    RankDiagnosis,
    StepDiagnosis,
)
from flatout.records.doctor import FAMILIES as CHECK_FAMILIES
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
from flatout.records.events import Quality
from flatout.records.expectation import StepExpectation
from flatout.records.failure import FailureExplanation
from flatout.records.goal import Goal, GoalAnswer, GoalEstimate, GoalOption
from flatout.records.index import IndexedResult, ResultIndex
from flatout.records.ledger import LedgerClass, LedgerImprovement, LedgerReport
from flatout.records.loading import (
    CodePlace,
    FoundCause,
    LoaderSpeed,
    LoadingProfile,
    LoadingRate,
    RankLoading,
    SampleStage,
)
from flatout.records.machine import Xid
from flatout.records.nccl_tuning import Case, CollectiveWork, GroupShape, NcclTuning, SizeResult, WrongAnswer
from flatout.records.network import NetworkAnswer, NetworkBill
from flatout.records.packing import (
    DamagedSample,
    OpenTimes,
    PackCheck,
    PackedShard,
    PackedSplit,
    PackIndex,
    PackingGain,
    PackResult,
)
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
from flatout.records.recorded_time import CallLatency, RecordedTime, StepTimeline, TimelineLane, UncountedCalls
from flatout.records.recording import DeviceFacts, GpuUse, HostRecording, HostUse, Measured
from flatout.records.replay import (
    MeasureDifference,
    PolicyDifference,
    PolicyReplay,
    ReplayReport,
    ReplaySeries,
    SizeWait,
    TeamUse,
)
from flatout.records.serving import (
    AnswerGate,
    Cause,
    CurvePoint,
    LatencyLimit,
    LoadCurve,
    LoadPoint,
    ServerChange,
    ServerTrial,
    ServingTuning,
    ServingWindow,
    Spread,
    TriedArm,
    UnofferedKnob,
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
from flatout.records.staging import StageResult
from flatout.records.stall_trace import StalledRank, StallTrace, TracedActivity
from flatout.records.step_series import LogChange, LogSide
from flatout.records.step_time import StepTime, WorkTime
from flatout.records.storage import StorageVerdict
from flatout.records.tracking import (
    Commit,
    CommitRange,
    Drift,
    EnvironmentChange,
    LevelChange,
    Measure,
    PartShift,
    SeriesCheck,
    TrackCheck,
    TrackedChange,
    TrackedResult,
    TrackGate,
    TrackPoint,
    TwoStates,
)
from flatout.records.trial import Covariates, Padding
from flatout.records.tuning import Bound, GainSought, MoreTrials, Outlook, PaddingChange, Separation
from flatout.records.verdict import NoiseFloor, Verdict
from flatout.records.watch import (
    DrainCost,
    FailureProbability,
    GpuAdvice,
    GpuStatus,
    LiveFinding,
    NodeHealth,
    NodeSign,
    RankStatus,
    WatchStatus,
)
from flatout.records.xla_tuning import XlaChange, XlaTrial, XlaTried, XlaTuning
from flatout.report.diff import DiagnosisDiff, DiffSide, FindingChange, PartChange
from flatout.report.parts import PART_MEANINGS, SAFETY_MEANINGS
from flatout.report.recording_json import RecordedRank, RecordingReport
from flatout.report.scaling import LostPart, Scaling
from flatout.report.tuning_json import AdoptedChange, TriedChange, TuningReport
from flatout.run_trackers.values import LoggedValues
from flatout.schedule.live.actions import Action, NodeReservation
from flatout.schedule.live.controller import Cycle
from flatout.schedule.policies.names import POLICIES
from flatout.submit import Submitted

ROOT = Path(__file__).parent.parent
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs' hook: the page with its marks replaced. An unknown mark is a KeyError, which stops the build."""
    return MARK.sub(lambda match: GENERATORS[match[1]](), markdown)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def cli() -> str:
    """Each verb: usage, description, arguments and options."""
    group: Any = parser()
    parent = group.make_context("flatout", [], resilient_parsing=True)
    return "\n\n".join(_verb(name, command, parent) for name, command in _commands(group, ""))


def _commands(group: Any, before: str) -> Iterable[tuple[str, Any]]:
    """The commands of a group and of the groups in it, by their whole names: `schedule replay`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield before + name, command
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _verb(name: str, command: Any, parent: Any) -> str:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and not getattr(parameter, "hidden", False):
            rows.append([f"`{record[0].strip()}`", " ".join(record[1].split())])
    text = "\n\n".join(_markdown(paragraph) for paragraph in inspect.cleandoc(command.help or "").split("\n\n"))
    return f"## flatout {name}\n\n```console\nflatout {name} {usage}\n```\n\n{text}\n\n" + table(
        ["Argument", "Meaning"], rows
    )


def _markdown(paragraph: str) -> str:
    """A paragraph of help; examples as a block to copy."""
    if not paragraph.startswith(NO_WRAP):
        return paragraph
    heading, *lines = paragraph.removeprefix(NO_WRAP).strip().splitlines()
    return "\n".join([heading, "", "```console", *(line.strip() for line in lines), "```"])


def findings() -> str:
    """Each finding as `flatout explain` has it: name, code, summary and five texts."""
    sections = []
    for name, summary in listed():
        found = explanation(name)
        texts = "\n\n".join(f"**{heading}**\n\n{text}" for heading, text in found.sections.items())
        sections.append(f"## {name}\n\n`{found.code}` {summary}\n\n{texts}")
    return "\n\n".join(sections)


def json() -> str:
    """The contract `flatout/diagnosis`, from the records that are written."""
    records = (
        *(Diagnosis, JobSummary, RankDiagnosis, DeviceDiagnosis, StepDiagnosis, Blame, Finding, Quality),
        GroupCommunication,
        *(RecordedTime, CallLatency, UncountedCalls, StepTimeline, TimelineLane),
        *(StallTrace, StalledRank, TracedActivity),
    )
    return _contract("flatout/diagnosis", records, version=2)


def diff_json() -> str:
    """The contract `flatout/diff`."""
    return _contract(
        "flatout/diff",
        (DiagnosisDiff, DiffSide, PartChange, FindingChange, Scaling, LostPart, EnvironmentDifference),
        version=2,
    )


def log_diff_json() -> str:
    """The contract `flatout/log-diff`."""
    return _contract("flatout/log-diff", (LogChange, LogSide))


def xla_tuning_json() -> str:
    """The contract `flatout/xla-tuning`."""
    return _contract("flatout/xla-tuning", (XlaTuning, XlaTried, XlaChange, XlaTrial))


def index_json() -> str:
    """The contract `flatout/index`."""
    return _contract("flatout/index", (ResultIndex, IndexedResult))


def comparison_json() -> str:
    """The contract `flatout/comparison`."""
    records = (
        *(Comparison, Arm, Verdict, ComparisonGate, Power, PartDifference, CallDifference),
        *(EnvironmentDifference, TrainingCheck, Separation),
    )
    return _contract("flatout/comparison", records)


def data_profile_json() -> str:
    """The contract `flatout/data-profile`."""
    records = (
        *(LoadingProfile, RankLoading, SampleStage, CodePlace),
        *(LoaderSpeed, LoadingRate, FoundCause, StorageVerdict),
    )
    return _contract("flatout/data-profile", records)


def logged_json() -> str:
    """The contract `flatout/logged`."""
    return _contract("flatout/logged", (LoggedValues,))


def data_cache_json() -> str:
    """The contract `flatout/data-cache`."""
    return _contract("flatout/data-cache", (CacheUse, CacheCounts))


def packing_json() -> str:
    """The contract `flatout/packing`."""
    return _contract("flatout/packing", (PackResult, PackingGain, OpenTimes))


def pack_json() -> str:
    """The contract `flatout/pack`, the index of a pack."""
    return _contract("flatout/pack", (PackIndex, PackedSplit, PackedShard))


def pack_check_json() -> str:
    """The contract `flatout/pack-check`."""
    return _contract("flatout/pack-check", (PackCheck, DamagedSample))


def staging_json() -> str:
    """The contract `flatout/staging`."""
    return _contract("flatout/staging", (StageResult,))


def conditions() -> str:
    """The words of `--fail-on`, by command."""
    rows = [
        [f"`{command}`", f"`{word.form}`", word.meaning.replace("N %", "PERCENT")]
        for command, words in WORDS.items()
        for word in words
    ]
    return table(["Command", "Condition", "Holds if"], rows)


def explanation_json() -> str:
    """The contract `flatout/explanation`."""
    return _contract("flatout/explanation", (Explanations, Explanation))


def failure_explanation_json() -> str:
    """The contract `flatout/failure-explanation`."""
    return _contract("flatout/failure-explanation", (FailureExplanation,))


def known_failures_table() -> str:
    """The failures that are known by their words: name, class, restart, meaning and way out."""
    return table(
        ["Name", "Class", "Restart", "What it means", "Way out"],
        [
            [f"`{known.name}`", known.failure_class, known.restart, known.means, known.way_out.replace("|", "\\|")]
            for known in known_failures()
        ],
    )


def tuning_json() -> str:
    """The contract `flatout/tuning`, from the records that are written."""
    steps = (StepTime, WorkTime)
    outlook = (Outlook, GainSought, MoreTrials)
    kept = (PaddingChange, Padding, Separation)
    records = (TuningReport, AdoptedChange, TriedChange, Patch, *steps, *outlook, Bound, NoiseFloor, *kept)
    return _contract("flatout/tuning", records)


def plan_json() -> str:
    """The contract `flatout/plan`."""
    return _contract(
        "flatout/plan",
        (
            *(Plan, PlannedLayout, Layout, ExcludedLayouts, GoalAnswer, Goal, GoalOption, GoalEstimate),
            *(NetworkAnswer, NetworkBill, PlannedPlacement, SlowLinks),
        ),
    )


def placement_json() -> str:
    """The contract `flatout/placement`."""
    return _contract("flatout/placement", (PlacedJob, Layout, Placement, ExchangeTime, LinkLoad))


def serving_plan_json() -> str:
    """The contract `flatout/serving-plan`."""
    return _contract(
        "flatout/serving-plan", (ServingPlan, ServedLoad, ServingOption, RefusedOption, CacheNeed, ServingAccuracy)
    )


def plan_evaluation_json() -> str:
    """The contract `flatout/plan-evaluation`."""
    return _contract("flatout/plan-evaluation", (PlanEvaluation, SourceAccuracy, GroupRegret))


def cost_json() -> str:
    """The contract `flatout/cost`."""
    return _contract("flatout/cost", (Chargeback, TeamCost, CostLine, Estimate, BudgetState, SkippedRow))


def buy_or_rent_json() -> str:
    """The contract `flatout/buy-or-rent`."""
    return _contract("flatout/buy-or-rent", (BuyOrRent, OwnershipCost, Estimate))


def power_cap_json() -> str:
    """The contract `flatout/power-cap`."""
    return _contract("flatout/power-cap", (CapAdvice, CapPoint, Ratio))


def carbon_json() -> str:
    """The contract `flatout/carbon`."""
    return _contract("flatout/carbon", (CarbonAdvice, CarbonStart))


def spot_json() -> str:
    """The contract `flatout/spot`."""
    return _contract("flatout/spot", (SpotAdvice, Availability, StrategyResult))


def submission_json() -> str:
    """The contract `flatout/submission`."""
    return _contract("flatout/submission", (Submitted,))


def network_prices() -> str:
    """Prices of switches and links, each with its source."""
    known = all_network_prices()
    header = ["", "Low, USD", "Typical", "High", "Source", "Date"]
    rows = [
        [part.name, f"{part.low:,g}", f"{part.typical:,g}", f"{part.high:,g}", part.source, part.date]
        for part in (*known.switch, *known.link)
    ]
    return table(header, rows)


def prices() -> str:
    """Prices by GPU and terms, then the other factors, each with its source."""
    known = all_prices()
    header = ["", "Low", "Typical", "High", "How known", "Source", "Date"]
    rents = table(["GPU", "Terms", *header[1:]], [[one.gpu, one.terms, *_range(one)] for one in known.gpus])
    meanings = {
        "electricity": "Electricity, USD a kWh",
        "pue": "PUE: data centre over servers",
        "host": "Host: server over its GPUs",
        "busy_power_share": "Power of a busy GPU, of its limit",
        "idle_power_share": "Power of an idle GPU, of its limit",
    }
    factors = table(header, [[text, *_range(getattr(known, name))] for name, text in meanings.items()])
    return f"{rents}\n\n## Other factors\n\n{factors}"


def _range(one: Range | Price) -> list[str]:
    return [*(f"{value:g}" for value in (one.low, one.typical, one.high)), one.provenance, one.source, one.date]


def grids() -> str:
    """Each grid with its grams, and where they are from."""
    found = all_grids()
    rows = [
        [f"`{grid.zone}`", grid.name, f"{grid.g_per_kwh:g}", ", ".join(f"`{name}`" for name in grid.aliases)]
        for grid in found
    ]
    told = f"Source: {found[0].source}. Compared on {found[0].date}."
    return f"{table(['Code', 'Grid', f'g in {found[0].year}', 'Other names'], rows)}\n\n{told}"


def schedule_cycle_json() -> str:
    """The contract `flatout/schedule-cycle`."""
    return _contract("flatout/schedule-cycle", (Cycle, Action, NodeReservation))


def sharing_json() -> str:
    """The contract `flatout/sharing`."""
    return _contract("flatout/sharing", (SharingResult, GpuSlice, Beside, PairSharing))


def replay_json() -> str:
    """The contract `flatout/replay`."""
    records = (ReplayReport, PolicyReplay, SizeWait, TeamUse, ReplaySeries, PolicyDifference, MeasureDifference)
    return _contract("flatout/replay", records)


def policies() -> str:
    """The scheduling policies: name and rule."""
    return table(["Policy", "Rule"], [[f"`{name}`", policy.summary] for name, policy in POLICIES.items()])


def track_check_json() -> str:
    """The contract `flatout/track-check`."""
    records = (
        *(TrackCheck, TrackGate, SeriesCheck, TrackPoint, TrackedChange, LevelChange, CommitRange),
        *(EnvironmentChange, PartShift, Drift, TwoStates),
    )
    return _contract("flatout/track-check", records)


def tracked_result_json() -> str:
    """The lines of a history."""
    records = (TrackedResult, Measure, Commit)
    return "\n\n".join(f"### {record.__name__}\n\n{_summary(record)}{_fields(record)}" for record in records)


def watch_json() -> str:
    """The contracts `flatout/watch` and `flatout/top`."""
    records = (WatchStatus, RankStatus, GpuStatus, LiveFinding, StepExpectation)
    return _contract("flatout/watch", records)


def node_health_json() -> str:
    """The contract `flatout/node-health`."""
    return _contract("flatout/node-health", (NodeHealth, GpuAdvice, NodeSign, DrainCost, FailureProbability))


def ledger_json() -> str:
    """The contract `flatout/ledger-report`."""
    return _contract("flatout/ledger-report", (LedgerReport, LedgerClass, LedgerImprovement))


def recording_json() -> str:
    """The contract `flatout/recording-report`."""
    records = (
        *(RecordingReport, RecordedRank, Measured, HostUse, GpuUse, Xid, HostRecording, DeviceFacts),
        *(RecordedTime, CallLatency, UncountedCalls, StepTimeline, TimelineLane),
    )
    return _contract("flatout/recording-report", records, version=2)


def models() -> str:
    """The named models: parameters and source."""
    rows = [[f"`{name}`", f"{num_parameters(model):,}", model.source] for name, model in all_models().items()]
    return table(["Name", "Parameters", "Source"], rows)


def model_types() -> str:
    """Each supported type of a config.json: a published model, and its parameters by both counts."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/model_counts.json").read_bytes())["models"]
    configs = msgspec.json.decode((ROOT / "tests/data/models/configs.json").read_bytes())
    rows = []
    for name, config in sorted(configs.items(), key=lambda item: (item[1]["model_type"], item[0])):
        workload = from_values(Path(f"{name}.json"), config)
        counted = stored[name]
        theirs = f"{counted['parameters']:,}" if counted["parameters"] else "not in transformers"
        if counted["source"] != "transformers" and counted["parameters"]:
            theirs = f"published: {theirs}"
        kinds = sorted({kind.mixing for kind in layer_kinds(workload)} - {"none"})
        rows.append(
            [
                f"`{config['model_type']}`",
                name.removeprefix("default-") + (" (defaults)" if name.startswith("default-") else ""),
                ", ".join([*kinds, *(f"{tower.name} tower" for tower in workload.towers)]),
                f"{num_parameters(workload):,}",
                theirs,
                f"{num_active_parameters(workload):,}",
            ]
        )
    return table(["Type", "Model", "Layers", "Parameters", "By transformers", "Active per token"], rows)


def systems() -> str:
    """The systems that a cluster may be named after."""
    rows = [
        [
            ", ".join(f"`{alias}`" for alias in one.aliases),
            one.gpu,
            str(one.nvlink_domain),
            f"{one.nic_gbit_per_s:g}",
            one.source,
        ]
        for one in {system.aliases: system for system in all_systems().values()}.values()
    ]
    return table(["Name", "GPU", "GPUs in an NVLink domain", "Network of a node, Gb/s", "Source"], rows)


def serving_plan_accuracy() -> str:
    """The errors on published serving results, each source by constants fitted to all others, as they were stored."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/serving_plan.json").read_bytes())
    rows = [
        [
            one["source"],
            one["models"],
            str(one["num_results"]),
            *(_share(one[key]) for key in ("mean_error", "bias", "within_interval", "ttft_error", "itl_error")),
        ]
        for one in stored["sources"]
    ]
    return table(["Source", "Models", "Results", "Error", "Bias", "In interval", "TTFT error", "ITL error"], rows)


def plan_accuracy() -> str:
    """What `flatout plan evaluate` said of the published runs, as it was stored."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/plan_evaluation.json").read_bytes())
    keys = ("mape", "mape_calibrated", "mape_calibrated_random")
    rows = [
        [
            one["source"],
            str(one["rows"]),
            *(_share(one[key]) for key in (*keys, "mape_in_sample", "bias", "coverage_90", "memory_mape")),
            _share(one["called_unsafe"]),
            _share(one["called_unsafe_as_read"]),
            f"{one['out_of_memory_called_safe']} of {one['out_of_memory_rows']}" if one["out_of_memory_rows"] else "-",
        ]
        for one in stored["sources"]
    ]
    means = [_share(stored[key]) for key in keys]
    of_memory = [_share(stored[key]) for key in ("memory_mape", "called_unsafe", "called_unsafe_as_read")]
    rows.append(["all, sources weighed alike", "", *means, "", "", _share(stored["coverage_90"]), *of_memory, ""])
    header = ["Source", "Rows", "Error", "Calibrated", "By random three", "By all its rows", "Bias", "In interval",
              "Memory error", "Called unsafe", "as read", "Out of memory, called safe"]  # fmt: skip
    groups = [
        [
            one["group"].split("|20")[0],
            str(one["n"]),
            *(_share(one[f"regret_top{count}"]) for count in (1, 3, 5)),
            *(_share(one[f"regret_top{count}_gated"]) for count in (1, 3, 5)),
        ]
        for one in stored["groups"]
    ]
    regrets = table(["Group", "Layouts", "Best of 1", "Best of 3", "Best of 5", "Behind the gate: 1", "3", "5"], groups)
    return f"{table(header, rows)}\n\n{regrets}"


def plan_unseen() -> str:
    """The errors on the runs of `benchmarks/plan_unseen.csv`: of the first prediction, and now."""
    results = ROOT / "benchmarks/results"
    first, now = (
        msgspec.json.decode((results / name).read_bytes())["kinds"]
        for name in ("plan_unseen_first.json", "plan_unseen.json")
    )
    keys = ("mape", "inside_90", "memory_mape", "called_unsafe")
    rows = [
        [kind, str(now[kind]["rows"]), *(_share(each.get(kind, {}).get(key)) for key in keys for each in (first, now))]
        for kind in now
    ]
    header = ["Rows", "Number", "Error, first", "now", "In interval, first", "now", "Memory error, first", "now",
              "Called unsafe, first", "now"]  # fmt: skip
    return table(header, rows)


def plan_calculon() -> str:
    """Both on the same rows, as `benchmarks/plan_calculon.py` stored it."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/plan_calculon.json").read_bytes())
    keys = ("calculon_mape", "calculon_bias", "flatout_mape", "flatout_bias")
    rows = [[one["source"], str(one["rows"]), *(_share(one[key]) for key in keys)] for one in stored["errors"]]
    rates = stored["rates"]
    return (
        table(["Source", "Rows", "Calculon", "its bias", "Flatout", "its bias"], rows)
        + f"\n\nOn layouts of GPT3-175B on 4,096 A100 that both can express, one process, by CPU time: Calculon "
        f"{rates['calculon_per_cpu_s']['median']:,.0f} a second, Flatout {rates['flatout_per_cpu_s']['median']:,.0f}."
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def doctor_json() -> str:
    """The contract `flatout/doctor`, from the records that are written."""
    records = (DoctorReport, CheckResult, Gain, Topology, TopologyNode, PcieLink, TopologyPair)
    return _contract("flatout/doctor", records, version=2)


def ceilings_json() -> str:
    """The contract `flatout/ceilings`, from the records that are written."""
    return _contract(
        "flatout/ceilings", (Ceilings, Measurement, LoadedLink, CollectiveFit, PeerDifference, WrongResult)
    )


def nccl_tuning_json() -> str:
    """The contract `flatout/nccl-tuning`, from the records that are written."""
    records = (NcclTuning, CollectiveWork, GroupShape, Case, SizeResult, WrongAnswer, CollectiveTable, TableRow)
    return _contract("flatout/nccl-tuning", records)


def serving_json() -> str:
    """The contract `flatout/serving`, from the records that are written."""
    records = (
        *(ServingTuning, LatencyLimit, Cause, ServerChange, TriedArm, AnswerGate, LoadCurve, CurvePoint, UnofferedKnob),
        *(ServerTrial, LoadPoint, Spread, ServingWindow, Covariates),
    )
    return _contract("flatout/serving", records)


def model_compression_json() -> str:
    """The contract `flatout/compression`, from the records that are written."""
    records = (Compression, MaxLoss, Evaluation, VariantResult, LossVerdict, SpeedAt, UnofferedVariant)
    return _contract("flatout/compression", records)


def compression_variants() -> str:
    """The variants that `flatout compress` tries."""
    rows = [(f"`{row.name}`", row.summary, "patch" if row.applied_by == "patch" else "file") for row in ROWS]
    return table(("Variant", "What it is", "Applied by"), rows)


def nccl_spaces() -> str:
    """The candidates of each transport."""
    rows = []
    for space in all_spaces():
        starts = [" ".join(f"{name}={value}" for name, value in start.environment.items()) for start in space.start]
        settings = "; ".join(f"`{words}`" for words in starts)
        others = start_of_choices(space, "default", {}, has_plugin=True).candidates[1:]
        names = [candidate.name for candidate in others]
        rows.append([f"`{space.transport}`", settings, "; ".join(names), space.source])
    return table(["Transport", "Settings of the process", "Choices and options", "Source"], rows)


def nccl_settings() -> str:
    """When NCCL reads each setting."""
    rows = [[f"`{setting.name}`", f"once a {setting.reads}", setting.source] for setting in all_settings()]
    return table(["Setting", "Read", "Source"], rows)


def doctor_hosts_json() -> str:
    """The contract `flatout/doctor-hosts`, from the records that are written."""
    return _contract("flatout/doctor-hosts", (HostsReport, HostDifference, ComparedFact), version=2)


def _contract(schema: str, records: Sequence[type[msgspec.Struct]], *, version: int = 1) -> str:
    """What every object of Flatout begins with, then the records, the first of which has the other keys."""
    envelope = table(
        ["Key", "Type", "Meaning"],
        [
            ["`schema`", "string", f"`{schema}`"],
            ["`version`", "integer", str(version)],
            ["`tool_version`", "string", "of Flatout"],
            ["`command`", "array of strings", "the command line; values that look like secrets are masked"],
        ],
    )
    sections = [f"{envelope}\n\nand the keys of `{records[0].__name__}`:"]
    sections += [f"### {record.__name__}\n\n{_summary(record)}{_fields(record)}" for record in records]
    return "\n\n".join(sections)


def _summary(record: type[msgspec.Struct]) -> str:
    text = inspect.cleandoc(record.__doc__ or "") if "__doc__" in vars(record) else ""
    return f"{text}\n\n" if text and not text.startswith(record.__name__ + "(") else ""


def _fields(record: type[msgspec.Struct]) -> str:
    meanings = _field_comments(record)
    rows = [
        [f"`{field.encode_name}`", _type_name(field.type), meanings.get(field.name, "")]
        for field in msgspec.structs.fields(record)
    ]
    return table(["Key", "Type", "Meaning"], rows)


def _field_comments(record: type) -> dict[str, str]:
    """What the comment behind each field of a record says, or the comment lines above it."""
    comments: dict[str, str] = {}
    above: list[str] = []
    name = ""
    source = textwrap.dedent(inspect.getsource(record))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            if token.line.lstrip().startswith("#"):
                above.append(text)
            elif name:
                comments[name] = text
        elif token.type == tokenize.NAME and token.start[1] == 4 and (field := re.match(r"    (\w+):", token.line)):
            name = field[1]
            if above:
                comments[name] = " ".join(above)
            above = []
    return comments


def _type_name(kind: Any) -> str:
    """A Python type in the words of JSON."""
    info = msgspec.inspect.type_info(kind)
    return _json_type(info)


def _json_type(info: msgspec.inspect.Type) -> str:
    match info:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_json_type(each) for each in types)
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return f"array of {_plural(_json_type(item))}"
        case msgspec.inspect.TupleType(item_types=items):
            return f"array of {len(items)} {_plural(_json_type(items[0]))}"
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case msgspec.inspect.EnumType(cls=cls):
            return " or ".join(f"`{member.value}`" for member in cls)
        case msgspec.inspect.DictType(value_type=value):
            return "object" if isinstance(value, msgspec.inspect.AnyType) else f"object of {_plural(_json_type(value))}"
        case msgspec.inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case _:
            return JSON_TYPES[type(info)]


def _plural(name: str) -> str:
    if " or " in name:
        return f"({name})"
    if name.startswith("array "):
        return f"arrays {name.removeprefix('array ')}"
    return name if name.startswith("[") else f"{name}s"


JSON_TYPES: Mapping[type, str] = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.NoneType: "null",
}


def parts() -> str:
    """Each part and its meaning."""
    return table(["Part", "Meaning"], [[f"`{name}`", text] for name, text in PART_MEANINGS.items()])


def safety() -> str:
    """Each safety class and its meaning."""
    return table(["Safety", "Meaning"], [[f"`{name}`", text] for name, text in SAFETY_MEANINGS.items()])


def gpus() -> str:
    """The catalogue, and where its numbers are from."""
    header = ["GPU", "Memory", "Memory GB/s", *DTYPES, "SMs or CUs", "Links GB/s", "W"]
    facts = all_gpu_facts()
    rows = [
        [
            gpu.name,
            f"{gpu.memory_bytes >> 30} GiB",
            _number(gpu.memory_bytes_per_s, 1e9),
            *(_number(gpu.peak_flops_per_s.get(dtype), 1e12) for dtype in DTYPES),
            _number(gpu.num_sms),
            _number(gpu.link_bytes_per_s, 1e9),
            _number(gpu.tdp_w),
        ]
        for gpu in facts
    ]
    sources = [
        [gpu.name, ", ".join(f"`{name}`" for name in gpu.reported_names), gpu.note, _linked(gpu.source), gpu.date]
        for gpu in facts
    ]
    source_header = ["GPU", "Reported names", "Note", "Source", "Compared"]
    return f"{table(header, rows)}\n\n## Sources\n\n{table(source_header, sources)}"


def links() -> str:
    """PCIe, links between GPUs, and adapters, with their sources."""
    lanes = {one.generation: one for one in all_pcie()}
    pcie = [
        [
            str(one.generation),
            f"{one.gt_per_s:g}",
            f"{one.lane_gb_per_s:g}",
            _number(one.bytes_per_s(16), 1e9),
            one.source,
        ]
        for one in lanes.values()
    ]
    gpu = [
        [
            one.name,
            ", ".join(f"`{name}`" for name in one.on),
            str(one.num_links),
            f"{one.link_gb_per_s:g}",
            _linked(one.source),
        ]
        for one in all_gpu_links()
    ]
    nics = [
        [
            one.name,
            f"{one.gbit_per_s:g}",
            "-" if one.pcie_generation is None else f"{one.pcie_generation}.0 x{one.pcie_lanes}",
            ", ".join(f"`{name}`" for name in one.hca_types),
            one.note,
            _linked(one.source),
        ]
        for one in all_nics()
    ]
    return (
        "### PCIe\n\n" + table(["Generation", "GT/s", "GB/s a lane", "GB/s of 16 lanes", "Source"], pcie)
        + "\n\n### Links between GPUs\n\n" + table(["Link", "GPUs", "Links", "GB/s a link", "Source"], gpu)
        + "\n\n### Network adapters\n\n" + table(["Adapter", "Gb/s", "PCIe", "hca_type", "Note", "Source"], nics)
    )  # fmt: skip


def peer_alarms() -> str:
    """What benchmarks/peer_false_alarms.py found, as it was stored."""
    stored = msgspec.json.decode((ROOT / "benchmarks/results/peer_false_alarms.json").read_bytes())
    alarms = {(one["values"], one["peers"], one["scatter"]): one["rate"] for one in stored["false_alarms"]}
    scatters = sorted({scatter for _, _, scatter in alarms})
    kinds = list(dict.fromkeys((values, peers) for values, peers, _ in alarms))
    rows = [
        [kind, str(peers), *(f"{alarms[kind, peers, one] * 100:.1f} %" for one in scatters)] for kind, peers in kinds
    ]
    found = {(one["peers"], one["slow"]): one["rate"] for one in stored["found"]}
    slow = sorted({share for _, share in found})
    finds = [[str(n), *(f"{found[n, one] * 100:.0f} %" for one in slow)] for n in dict.fromkeys(n for n, _ in found)]
    return (
        table(["Values", "Peers", *(f"alarms at {one * 100:g} % scatter" for one in scatters)], rows)
        + "\n\n"
        + table(["Peers", *(f"{one * 100:g} % slow is found" for one in slow)], finds)
    )


def _number(value: float | None, unit: float = 1) -> str:
    return "-" if value is None else f"{value / unit:,.6g}"


def _linked(source: str) -> str:
    title, _, address = source.rpartition(", ")
    return f"[{title}]({address})" if title and address.startswith("http") else source


def changes() -> str:
    """The catalogue of changes, a section per family, and the forbidden settings."""
    sections = []
    for family in FAMILIES:
        intro = inspect.cleandoc(family.__doc__ or "")
        knobs = "\n\n".join(_knob(knob) for knob in KNOBS if knob.family == family.FAMILY)
        sections.append(f"## {family.FAMILY}\n\n{intro}\n\n{knobs}")
    # A rule that allows some values gives its reason for one that it refuses.
    rows = [[f"`{name}`", rule("LL128", {name: "LL128"}) or ""] for name, rule in FORBIDDEN.items()]
    return "\n\n".join([*sections, f"## Forbidden settings\n\n{table(['Variable', 'Why'], rows)}"])


def _knob(knob: Knob) -> str:
    rows = [
        ["safety", f"`{knob.safety}`"],
        ["values", _valid(knob.valid)],
        ["answers", ", ".join(f"[`{name}`](findings.md#{name})" for name in knob.answers)],
        ["works on", ", ".join(f"`{part}`" for part in knob.reduces)],
        ["saves memory", f"up to {knob.saves_memory:.0%} of the peak" if knob.saves_memory else ""],
        ["needs", "; ".join(f"{need.fact.replace('_', ' ')} {need.relation} {need.value}" for need in knob.needs)],
        ["excludes", ", ".join(f"`{name}`" for name in knob.excludes)],
        ["requires", ", ".join(f"`{name}`" for name in knob.requires)],
        ["goes with", ", ".join(f"`{name}`" for name in knob.combines_with)],
        ["gates", ", ".join(knob.gates)],
        ["source", knob.source],
    ]
    summary = f"{knob.summary[0].upper()}{knob.summary[1:]}."
    return f"### {knob.name}\n\n{summary} {knob.doc}\n\n" + table(["", ""], [row for row in rows if row[1]])


def checks() -> str:
    """Each check of `flatout doctor`, a section a family."""
    sections = []
    for family in CHECK_FAMILIES:
        found = [check for check in CHECKS if check.family == family]
        sections.append(f"## {family}\n\n{len(found)} checks.")
        for check in found:
            rows = [
                ["read", check.read],
                ["expected", check.expected],
                ["source", check.source],
                ["costs", check.cost],
                ["fix", check.fix],
                ["when this is wrong", check.when_wrong],
            ]
            title = f"{check.topic[0].upper()}{check.topic[1:]}."
            sections.append(f"### {check.id}\n\n{title}\n\n" + table(["", ""], rows))
    return "\n\n".join(sections)


def _valid(valid: ValidRange) -> str:
    if valid.choices:
        return ", ".join(f"`{choice}`" for choice in valid.choices)
    return "" if valid.least is None or valid.most is None else f"{valid.least:g} to {valid.most:g}"


def words() -> str:
    """Return the table of old words and the standard ones."""
    entries = tomllib.loads((ROOT / "docs/words.toml").read_text())["word"]
    return table(["Old word", "Standard word"], ([entry["old"], entry["use"]] for entry in entries))


def changelog() -> str:
    """The repository's CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def security() -> str:
    """The repository's SECURITY.md."""
    return (ROOT / "SECURITY.md").read_text(encoding="utf-8")


# One rank's share of the link to the next node, and the time of one message: NVLink of H100 and H200; NCCL over TCP
# with and without more sockets (measured on H200); adapters at their line rate.
_LINKS = {
    "NVLink, 400 GB/s": Link(latency_s=5e-6, bytes_per_s=400e9),
    "InfiniBand or RoCE, 400 Gbit/s": Link(latency_s=1e-5, bytes_per_s=48e9),
    "TCP with more sockets, 17 GB/s": Link(latency_s=3e-5, bytes_per_s=17e9),
    "TCP by NCCL's default, 2.9 GB/s": Link(latency_s=3e-5, bytes_per_s=2.9e9),
    "Ethernet, 10 Gbit/s": Link(latency_s=5e-5, bytes_per_s=1.18e9),
    "Ethernet, 1 Gbit/s": Link(latency_s=1e-4, bytes_per_s=0.118e9),
}
_BUCKET_BYTES = 25 << 20


def compression() -> str:
    """What the exposed exchange of a DDP bucket gains by each compression, by link and number of ranks."""
    rows = []
    for link_name, link in _LINKS.items():
        for num_ranks in (2, 8, 64, 256):
            gains = [gain(name, link, _BUCKET_BYTES, num_ranks) for name in COMPRESSIONS if name != "fp16"]
            cells = [f"**{times:.1f}**" if times >= MIN_GAIN else f"{times:.2g}" for times in gains]
            rows.append([link_name, str(num_ranks), *cells])
    return table(["Link of each rank", "Ranks", *[name for name in COMPRESSIONS if name != "fp16"]], rows)


def python_functions() -> str:
    """The functions of `flatout.api`: signature and docstring of each."""
    return "\n\n".join(_function(getattr(flatout.api, name)) for name in flatout.api.__all__)


def _function(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    lines = [f"    {_parameter(parameter)}," for parameter in parameters]
    first_keyword = next(at for at, one in enumerate(parameters) if one.kind is inspect.Parameter.KEYWORD_ONLY)
    lines.insert(first_keyword, "    *,")
    returned = inspect.signature(function).return_annotation
    code = "\n".join([f"{function.__name__}(", *lines, f") -> {returned}"])
    text = inspect.cleandoc(function.__doc__ or "")
    return f"## {function.__name__}\n\n```python\n{code}\n```\n\n{text}"


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{parameter.name}: {parameter.annotation}{default}"


def _default(value: object) -> str:
    return getattr(value, "__name__", None) or repr(value)


def python_results() -> str:
    """The classes that the functions return: what each is, its tables, and its methods."""
    classes = [
        api_results.DiagnosisResult,
        api_results.ProfileResult,
        api_results.TuningResult,
        api_results.ComparisonResult,
        api_results.CompressionResult,
        api_results.DiffResult,
        api_results.LogDiffResult,
        api_results.PlanResult,
        api_results.ReplayResult,
    ]
    return "\n\n".join(_result_class(cls) for cls in classes)


def _result_class(cls: Any) -> str:
    rows = []
    for name in ("to_dict", "to_json", "to_text", "to_html", "to_pandas", "rows", "folder", "is_better", "context"):
        member = getattr(cls, name, None)
        if member is not None:
            sentence = inspect.cleandoc(member.__doc__ or _inherited_doc(name)).split("\n\n")[0]
            rows.append([f"`{name}`", " ".join(sentence.split())])
    tables = getattr(cls, "tables", ())
    named = f" Its tables are {', '.join(f'`{name}`' for name in tables)}." if tables else ""
    return f"### {cls.__name__}\n\n{inspect.cleandoc(cls.__doc__)}{named}\n\n" + table(["Member", "Meaning"], rows)


def _inherited_doc(name: str) -> str:
    return getattr(api_results.Result, name).__doc__ or ""


GENERATORS: Mapping[str, Callable[[], str]] = {
    generator.__name__: generator
    for generator in (
        cli,
        python_functions,
        python_results,
        compression,
        findings,
        json,
        diff_json,
        log_diff_json,
        index_json,
        xla_tuning_json,
        comparison_json,
        data_profile_json,
        data_cache_json,
        logged_json,
        packing_json,
        pack_json,
        pack_check_json,
        staging_json,
        conditions,
        explanation_json,
        failure_explanation_json,
        known_failures_table,
        tuning_json,
        plan_json,
        placement_json,
        network_prices,
        serving_plan_json,
        serving_plan_accuracy,
        plan_evaluation_json,
        cost_json,
        buy_or_rent_json,
        power_cap_json,
        carbon_json,
        sharing_json,
        spot_json,
        submission_json,
        prices,
        grids,
        schedule_cycle_json,
        replay_json,
        policies,
        ledger_json,
        watch_json,
        node_health_json,
        track_check_json,
        tracked_result_json,
        recording_json,
        models,
        model_types,
        systems,
        plan_accuracy,
        plan_unseen,
        plan_calculon,
        doctor_json,
        doctor_hosts_json,
        ceilings_json,
        nccl_tuning_json,
        serving_json,
        model_compression_json,
        compression_variants,
        nccl_spaces,
        nccl_settings,
        parts,
        safety,
        gpus,
        links,
        peer_alarms,
        changes,
        checks,
        changelog,
        security,
        words,
    )
}
