"""A tuning tries what was measured for the job's collectives; `flatout tune nccl -- COMMAND` tries only that."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.change.jobs import diagnosis, facts
from tests.nccl_tuner.fabrics import KIB, MIB, work
from tests.nccl_tuner.gloo_traces import write_gloo_traces
from tests.tune.conftest import NoGpus
from tests.tune.simulated import COMMUNICATION, SOCKETS, SimulatedRunner, tuned

from flatout.change.tuner_plugin import plugin_folder
from flatout.diagnosis_pipeline import Diagnosed, diagnose_paths
from flatout.nccl_tuner import in_tuning, tuning
from flatout.nccl_tuner.candidates import process_starts
from flatout.nccl_tuner.in_tuning import FOLDER, MIN_EXPOSED_SHARE, NcclRequest, with_measured_collectives
from flatout.nccl_tuner.tuning import TuningRequest
from flatout.records.change import ChangeSet, JobFacts
from flatout.records.collective_table import CollectiveTable, TableRow
from flatout.records.nccl_tuning import NcclTuning
from flatout.records.tuning import TuningEnd
from flatout.report.tuning_next import next_reason, next_words
from flatout.tune.options import TuneOptions, tune_request
from flatout.tune.profiled import CountedProfile, Profiled
from flatout.tune.result import is_better

PLUGIN = str(plugin_folder() / "libnccl-tuner-flatout-0123456789abcdef.so")
VARIABLES = {"NCCL_TUNER_PLUGIN": PLUGIN, "FLATOUT_NCCL_TABLE": "/t/table.txt"}
MEASURED = NcclTuning(
    backend="nccl",
    transport="socket",
    software="torch 2.11.0, NCCL 2.28.9",
    work=work("all_reduce", sizes=(KIB,)),
    num_candidates=5,
    num_rounds=12,
    table=CollectiveTable(rows=(TableRow(collective="all_reduce", min_bytes=0, algorithm="ring"),)),
    environment=VARIABLES,
)
CHANGE = "nccl-measured"


def runner_with(folder: Path, speedups: dict[str, float], tuning: NcclTuning = MEASURED) -> SimulatedRunner:
    """A job whose collectives were measured before its tuning was interrupted."""
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / "nccl.json").write_bytes(msgspec.json.encode(tuning))
    runner = SimulatedRunner(speedups, costs=COMMUNICATION)
    runner.out = folder
    return runner


def test_what_was_measured_is_accepted_by_the_jobs_step(tmp_path: Path) -> None:
    result = tuned(runner_with(tmp_path, {CHANGE: 1.5, SOCKETS: 1.2}), nccl=NcclRequest(is_only=True))
    assert is_better(result)
    assert result.tuning.changes.environment == VARIABLES
    assert {one.name for one in result.tried if not one.name.startswith("nccl-")} == set()


def test_what_is_faster_alone_but_not_in_the_job_is_not_accepted(tmp_path: Path) -> None:
    result = tuned(runner_with(tmp_path, {CHANGE: 0.8}), nccl=NcclRequest(is_only=True))
    assert not is_better(result)
    assert CHANGE in {one.name for one in result.tried}


def test_where_nothing_was_faster_there_is_no_such_change(tmp_path: Path) -> None:
    nothing = msgspec.structs.replace(MEASURED, environment={}, table=CollectiveTable())
    result = tuned(runner_with(tmp_path, {}, nothing), nccl=NcclRequest(is_only=True))
    assert CHANGE not in {one.name for one in result.tried}


class EightGpus(NoGpus):
    def facts(self) -> list[object]:
        return [{}] * 8


def asked(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    job: JobFacts | None = None,
    exposed: float = 0.3,
    request: NcclRequest | None = None,
    gpus: type[NoGpus] = EightGpus,
    left_s: float = 3600.0,
) -> tuple[bool, str | None]:
    """Whether NCCL is measured for a job, and the note."""
    requests: list[TuningRequest] = []

    def measure(request: TuningRequest, *_: object) -> NcclTuning:
        requests.append(request)
        return MEASURED

    monkeypatch.setattr(in_tuning, "Gpus", gpus)
    monkeypatch.setattr(in_tuning, "tune_nccl", measure)
    monkeypatch.setattr(in_tuning, "work_of", lambda *_: MEASURED.work)
    done = Diagnosed(diagnosis=diagnosis({"exposed-communication": exposed}, step_s=1.0), job=None, sources={})  # type: ignore[arg-type]
    known = facts(num_ranks=4, num_hosts=1) if job is None else job
    asking = request or NcclRequest()
    found, note = with_measured_collectives(known, done, tmp_path, asking, lambda _: None, left_s=left_s)
    assert (found.measured_collectives == VARIABLES) == bool(requests)
    return bool(requests), note


def test_it_is_measured_once_where_communication_is_exposed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    is_measured, note = asked(monkeypatch, tmp_path)
    assert is_measured
    assert note is not None
    assert "5 candidates" in note
    assert "a table of 1 rows" in note
    with pytest.raises(AssertionError):  # the second time the variables are there, and nothing is measured
        asked(monkeypatch, tmp_path)


@pytest.mark.parametrize(("share", "is_measured"), [(MIN_EXPOSED_SHARE - 1e-6, False), (MIN_EXPOSED_SHARE, True)])
def test_where_communication_is_hidden_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float, is_measured: bool
) -> None:
    assert asked(monkeypatch, tmp_path, exposed=share)[0] == is_measured
    assert MIN_EXPOSED_SHARE == 0.05


@pytest.mark.parametrize(("left_s", "is_measured"), [(1201.0, True), (1199.0, False)])
def test_a_measurement_that_takes_the_time_of_trials_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left_s: float, is_measured: bool
) -> None:
    found, note = asked(monkeypatch, tmp_path, left_s=left_s)
    assert found is is_measured
    assert note is not None and ("not measured" in note) is not is_measured


def test_who_asks_for_nccl_alone_gets_it_measured_in_any_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asked(monkeypatch, tmp_path, exposed=0.0, request=NcclRequest(is_only=True), left_s=10.0)[0]


@pytest.mark.parametrize(
    ("job", "gpus", "words"),
    [
        (facts(num_ranks=4, num_hosts=1, backend="gloo"), EightGpus, "do not use it"),
        (facts(num_ranks=4, num_hosts=2), EightGpus, "on several hosts"),
        (facts(num_ranks=4, num_hosts=1, transport=None), EightGpus, "pass --transport"),
        (facts(num_ranks=16, num_hosts=1), EightGpus, "has 8 GPUs for 16 ranks"),
        (facts(num_ranks=2, num_hosts=1), NoGpus, "has 0 GPUs for 2 ranks"),
    ],
)
def test_why_it_is_not_measured_is_reported_to_who_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: JobFacts, gpus: type[NoGpus], words: str
) -> None:
    is_measured, note = asked(monkeypatch, tmp_path, job=job, gpus=gpus, request=NcclRequest(is_only=True))
    assert not is_measured
    assert note is not None
    assert words in note


# ---- from the traces of a job to its verdict, with ranks that really measure ----


class TracedRunner(SimulatedRunner):
    """Its profile is the traces of two CPU ranks: in each step an all-reduce of 2 MiB and one of 64 KiB."""

    def __init__(self, folder: Path, speedups: dict[str, float]) -> None:
        super().__init__(speedups, costs=COMMUNICATION, job=facts(num_ranks=2, backend="gloo", transport=None))
        self.out = folder
        self.traces = write_gloo_traces(folder, 2, (2 * MIB, 64 * KIB))

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        profiled = super().profile(changes, counted)
        job = diagnose_paths(self.traces).job
        done = msgspec.structs.replace(profiled.done, job=job)
        return msgspec.structs.replace(profiled, done=done)


@pytest.mark.usefixtures("warm")
def test_what_ranks_measure_for_the_sizes_of_a_trace_is_tried_and_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tuning, "NUM_TURNS", 3)
    monkeypatch.setattr(tuning, "ROUNDS_OF_TURN", 1)
    monkeypatch.setattr(tuning, "NUM_ROUNDS", 3)
    # Each start of the ranks takes a second: the default, and one setting.
    monkeypatch.setattr(tuning, "process_starts", lambda space: process_starts(space)[:2])
    fabric = tmp_path / "fabric.toml"
    fabric.write_text(
        """
        transport = "pcie"
        noise = 0.01
        [[law]]
        latency_s = 100e-6
        bytes_per_s = 3e9
        [[law]]
        settings = "buffer 1 MiB"
        latency_s = 100e-6
        bytes_per_s = 6e9
        """
    )
    runner = TracedRunner(tmp_path, {CHANGE: 1.5})
    result = tuned(runner, nccl=NcclRequest(is_only=True, time_s=60.0, fabric=str(fabric), uses_plugin=False))
    assert is_better(result)
    assert result.tuning.changes.environment == {"NCCL_BUFFSIZE": str(MIB)}
    kept = in_tuning.kept_measurement(tmp_path / FOLDER / "nccl.json")
    assert kept is not None
    assert [(case.collective, case.num_bytes, case.calls_per_step) for case in kept.work.cases] == [
        ("all_reduce", 64 * KIB, 1.0),
        ("all_reduce", 2 * MIB, 1.0),
    ]
    # By hand: one call of each size per step.
    default_s = 2 * 100e-6 + (2 * MIB + 64 * KIB) / 3e9
    assert kept.settings_speedup == pytest.approx(default_s / (2 * 100e-6 + (2 * MIB + 64 * KIB) / 6e9), rel=0.03)


# ---- the next command ----


def test_the_next_command_after_a_tuning_of_nccl_alone_continues_it_or_tries_the_rest(tmp_path: Path) -> None:
    options = TuneOptions(
        budget_s=600.0, nccl=NcclRequest(is_only=True, time_s=60.0, fabric="f.toml", uses_plugin=False)
    )
    nothing = msgspec.structs.replace(MEASURED, environment={}, table=CollectiveTable())
    result = tuned(runner_with(tmp_path, {}, nothing), nccl=options.nccl)
    ended = msgspec.structs.replace(result, request=tune_request(options, None))
    assert next_words(ended, "out")[:4] == ("flatout", "tune", "--budget", "600s")
    assert next_reason(ended) == "also try other changes than those of NCCL"
    cut_short = msgspec.structs.replace(ended, end=TuningEnd(ended_by="time_budget", limit=600.0), floor=None)
    words = next_words(cut_short, "out")
    assert words[:5] == ("flatout", "tune", "nccl", "--out", "out")
    assert words[words.index("--time") : words.index("--")] == ("--time", "60s", "--fabric", "f.toml", "--no-plugin")
