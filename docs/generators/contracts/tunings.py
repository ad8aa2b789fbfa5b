"""The contracts of what makes a job or a server faster: changes, comparisons, compression and data."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.records.change import Patch
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
    ScreenedSpeed,
    SpeedAt,
    UnofferedVariant,
    VariantResult,
)
from flatout.records.data_cache import CacheCounts, CacheUse
from flatout.records.loading import (
    CodePlace,
    FoundCause,
    LoaderSpeed,
    LoadingProfile,
    LoadingRate,
    RankLoading,
    SampleStage,
)
from flatout.records.nccl_tuning import Case, CollectiveWork, GroupShape, NcclTuning, SizeResult, WrongAnswer
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
from flatout.records.staging import StageResult
from flatout.records.step_time import StepTime, WorkTime
from flatout.records.storage import StorageVerdict
from flatout.records.trial import Covariates, Padding
from flatout.records.tuning import Bound, GainSought, MoreTrials, Outlook, PaddingChange, Separation
from flatout.records.verdict import NoiseFloor, Verdict
from flatout.records.xla_tuning import XlaChange, XlaTrial, XlaTried, XlaTuning
from flatout.report.tuning_json import AdoptedChange, TriedChange, TuningReport
from generators.contracts.contract import Contract, contract

CONTRACTS: Mapping[str, Contract] = {
    "tuning_json": contract(
        "flatout/tuning",
        *(TuningReport, AdoptedChange, TriedChange, Patch, StepTime, WorkTime, Outlook, GainSought),
        *(MoreTrials, Bound, NoiseFloor, PaddingChange, Padding, Separation),
    ),
    "xla_tuning_json": contract("flatout/xla-tuning", XlaTuning, XlaTried, XlaChange, XlaTrial),
    "nccl_tuning_json": contract(
        "flatout/nccl-tuning",
        *(NcclTuning, CollectiveWork, GroupShape, Case, SizeResult, WrongAnswer, CollectiveTable, TableRow),
    ),
    "comparison_json": contract(
        "flatout/comparison",
        *(Comparison, Arm, Verdict, ComparisonGate, Power, PartDifference, CallDifference),
        *(EnvironmentDifference, TrainingCheck, Separation),
    ),
    "serving_json": contract(
        "flatout/serving",
        *(ServingTuning, LatencyLimit, Cause, ServerChange, TriedArm, AnswerGate, LoadCurve, CurvePoint),
        *(UnofferedKnob, ServerTrial, LoadPoint, Spread, ServingWindow, Covariates),
    ),
    "model_compression_json": contract(
        "flatout/compression",
        Compression,
        MaxLoss,
        Evaluation,
        VariantResult,
        LossVerdict,
        ScreenedSpeed,
        SpeedAt,
        UnofferedVariant,
    ),
    "data_profile_json": contract(
        "flatout/data-profile",
        *(LoadingProfile, RankLoading, SampleStage, CodePlace, LoaderSpeed, LoadingRate, FoundCause),
        StorageVerdict,
    ),
    "data_cache_json": contract("flatout/data-cache", CacheUse, CacheCounts),
    "packing_json": contract("flatout/packing", PackResult, PackingGain, OpenTimes),
    "pack_json": contract("flatout/pack", PackIndex, PackedSplit, PackedShard),
    "pack_check_json": contract("flatout/pack-check", PackCheck, DamagedSample),
    "staging_json": contract("flatout/staging", StageResult),
}
