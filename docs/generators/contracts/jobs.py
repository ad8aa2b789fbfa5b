"""The contracts of jobs: their recordings, diagnoses, histories and failures."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.diagnose.explain import Explanation, Explanations
from flatout.records.comparison import EnvironmentDifference
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
from flatout.records.events import Quality
from flatout.records.expectation import StepExpectation
from flatout.records.failure import FailureExplanation
from flatout.records.index import IndexedResult, ResultIndex
from flatout.records.ledger import LedgerClass, LedgerImprovement, LedgerReport
from flatout.records.machine import Xid
from flatout.records.recorded_time import CallLatency, RecordedTime, StepTimeline, TimelineLane, UncountedCalls
from flatout.records.recording import DeviceFacts, GpuUse, HostRecording, HostUse, Measured
from flatout.records.stall_trace import StalledRank, StallTrace, TracedActivity
from flatout.records.step_series import LogChange, LogSide
from flatout.records.tracking import (
    CommitRange,
    Drift,
    EnvironmentChange,
    LevelChange,
    PartShift,
    SeriesCheck,
    TrackCheck,
    TrackedChange,
    TrackGate,
    TrackPoint,
    TwoStates,
)
from flatout.records.watch import GpuStatus, LiveFinding, RankStatus, WatchStatus
from flatout.report.diff import DiagnosisDiff, DiffSide, FindingChange, PartChange
from flatout.report.recording_json import RecordedRank, RecordingReport
from flatout.report.scaling import LostPart, Scaling
from flatout.run_trackers.values import LoggedValues
from generators.contracts.contract import Contract, contract

CONTRACTS: Mapping[str, Contract] = {
    "json": contract(
        "flatout/diagnosis",
        *(Diagnosis, JobSummary, RankDiagnosis, DeviceDiagnosis, StepDiagnosis, Blame, Finding, Quality),
        *(GroupCommunication, RecordedTime, CallLatency, UncountedCalls, StepTimeline, TimelineLane),
        *(StallTrace, StalledRank, TracedActivity),
        version=2,
    ),
    "diff_json": contract(
        "flatout/diff",
        *(DiagnosisDiff, DiffSide, PartChange, FindingChange, Scaling, LostPart, EnvironmentDifference),
        version=2,
    ),
    "log_diff_json": contract("flatout/log-diff", LogChange, LogSide),
    "index_json": contract("flatout/index", ResultIndex, IndexedResult),
    "recording_json": contract(
        "flatout/recording-report",
        *(RecordingReport, RecordedRank, Measured, HostUse, GpuUse, Xid, HostRecording, DeviceFacts),
        *(RecordedTime, CallLatency, UncountedCalls, StepTimeline, TimelineLane),
        version=2,
    ),
    "explanation_json": contract("flatout/explanation", Explanations, Explanation),
    "failure_explanation_json": contract("flatout/failure-explanation", FailureExplanation),
    "logged_json": contract("flatout/logged", LoggedValues),
    "watch_json": contract("flatout/watch", WatchStatus, RankStatus, GpuStatus, LiveFinding, StepExpectation),
    "ledger_json": contract("flatout/ledger-report", LedgerReport, LedgerClass, LedgerImprovement),
    "track_check_json": contract(
        "flatout/track-check",
        *(TrackCheck, TrackGate, SeriesCheck, TrackPoint, TrackedChange, LevelChange, CommitRange),
        *(EnvironmentChange, PartShift, Drift, TwoStates),
    ),
}
