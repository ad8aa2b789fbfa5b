"""`flatout tune jax`: what is offered, how trials are counted and read, and the verdicts and the gate of losses."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flatout.errors import InputError, UsageError
from flatout.inside import xla_steps
from flatout.inside.protocol import Variable
from flatout.launch import StandardInput
from flatout.records.xla_tuning import XlaChange, XlaTrial
from flatout.report.terminal import TextStyle
from flatout.report.xla_tuning_text import xla_tuning_text
from flatout.xla_tuner import trial as xla_trial
from flatout.xla_tuner import tune as loop
from flatout.xla_tuner.changes import CHANGES, check_names, environment_of, offered
from flatout.xla_tuner.judge import judged, loss_gate, speedup_of
from flatout.xla_tuner.trial import Processes, read_processes

BY_NAME = {change.name: change for change in CHANGES}
EXACT = BY_NAME["xla-latency-hiding"]


def trial(step_s: float | None, *losses: float, change: str = "", problem: str | None = None) -> XlaTrial:
    return XlaTrial(change=change, folder="t", step_s=step_s, start_s=5.0, num_steps=9, losses=losses, problem=problem)


@pytest.mark.parametrize(
    ("platform", "devices", "flags", "rounding", "names"),
    [
        ("cpu", 1, "", False, ["jax-compilation-cache"]),
        ("cpu", 1, "--xla_cpu_multi_thread_eigen=false", False, ["xla-cpu-threads", "jax-compilation-cache"]),
        ("cpu", 2, "--xla_backend_optimization_level=0", True, ["xla-optimization=3", "jax-compilation-cache"]),
        ("gpu", 1, "", False, ["xla-memory=0.92", "jax-compilation-cache"]),
        ("gpu", 1, "--xla_gpu_autotune_level=0", True,
         ["xla-autotune=4", "xla-triton-gemm=off", "xla-memory=0.92", "jax-compilation-cache"]),
        ("gpu", 8, EXACT.flags[0], False, ["xla-combine=128", "xla-combine=512", "xla-collective-overlap=2",
                                           "xla-pipelined-collectives", "xla-memory=0.92", "jax-compilation-cache"]),
    ],
)  # fmt: skip
def test_changes_are_those_that_the_job_can_use(
    platform: str, devices: int, flags: str, rounding: bool, names: list[str]
) -> None:
    chosen, reasons = offered(platform, devices, flags, allows_rounding=rounding)
    assert [change.name for change in chosen] == names
    assert not {reason.split(": ")[0] for reason in reasons} & set(names)


def test_named_changes_alone_are_tried_or_refused_with_a_reason() -> None:
    names = ("xla-combine=128", "xla-autotune=4", "xla-cpu-threads")
    chosen, reasons = offered("gpu", 2, "", allows_rounding=True, only=names)
    assert [change.name for change in chosen] == ["xla-combine=128"]
    assert reasons == [
        "xla-autotune=4: the job already has it: it is XLA's default",
        "xla-cpu-threads: it is a setting for cpu, and the job runs on gpu",
    ]
    check_names(names)
    with pytest.raises(UsageError, match="is `xla-fusion`") as error:
        check_names([*names, "xla-fusion"])
    assert "xla-combine=128, xla-combine=512" in str(error.value.hint)


@pytest.mark.parametrize(
    ("jax", "is_offered"), [("0.10.2", True), ("0.11.0", True), ("0.11.1", False), ("1.0.0", False), ("", True)]
)
def test_flags_that_this_version_of_xla_ignores_are_not_tried(jax: str, is_offered: bool) -> None:
    chosen, reasons = offered("gpu", 2, "", allows_rounding=False, jax=jax)
    assert ("xla-pipelined-collectives" in {change.name for change in chosen}) == is_offered
    said = "xla-pipelined-collectives: XLA accepts its flags and ignores them since JAX 0.11.1"
    assert (said in reasons) == (not is_offered)


def test_flags_of_a_change_follow_those_of_the_job() -> None:
    base = {"XLA_FLAGS": "--xla_a=1", "HOME": "/h"}
    assert environment_of(EXACT, base, "/c") == {**base, "XLA_FLAGS": f"--xla_a=1 {EXACT.flags[0]}"}
    assert environment_of(BY_NAME["jax-compilation-cache"], {}, "/c")["JAX_COMPILATION_CACHE_DIR"] == "/c"
    assert environment_of(None, base, "/c") == base


class Mark:
    def __init__(self, name: str, *, step_num: int) -> None:
        self.name, self.step_num = name, step_num


def test_steps_count_from_the_last_compilation_and_then_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[Any] = []
    profiler = SimpleNamespace(StepTraceAnnotation=type("Mark", (Mark,), {"__init__": Mark.__init__}))
    jax = SimpleNamespace(
        profiler=profiler,
        monitoring=SimpleNamespace(register_event_duration_secs_listener=listeners.append),
        process_index=lambda: 1,
        process_count=lambda: 2,
        device_count=lambda: 4,
        default_backend=lambda: "gpu",
        __version__="0.10",
    )
    clock = iter(float(second) for second in range(100))
    monkeypatch.setattr(xla_steps.time, "monotonic", lambda: next(clock) / 2)
    ended: list[int] = []

    def end(code: int) -> None:
        ended.append(code)
        raise SystemExit(code)  # the real one does not return

    monkeypatch.setattr(os, "_exit", end)
    asked = {"folder": str(tmp_path), "steps": 4, "warmup": 1, "most_s": 1000}
    monkeypatch.setenv(Variable.XLA_TRIAL, json.dumps(asked))
    xla_steps.install(jax)

    def train() -> None:
        for step in range(50):
            profiler.StepTraceAnnotation("train", step_num=step)
            xla_steps.report_loss(1.0 / (step + 1))
            if step in (0, 2):
                listeners[0]("/jax/core/compile/backend_compile_duration", 0.1)

    with pytest.raises(SystemExit):
        train()
    monkeypatch.setattr(xla_steps, "_STEPS", None)
    assert ended == [0]
    found = read_processes(tmp_path)
    assert found is not None
    assert (found.facts["platform"], found.facts["devices"]) == ("gpu", 4)
    assert len(found.step_s[0]) == 4  # marks 4 to 8: step 2 compiled, and step 3 is not counted either
    assert found.losses == tuple(1.0 / (step + 1) for step in range(8))


@pytest.mark.parametrize(("num_marks", "is_usable"), [(3, False), (4, True)])
def test_a_trial_needs_three_steps(
    num_marks: int, is_usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"9 layers")
    os.close(writing)

    def run(command: object, environment: dict[str, str], *, stdin: int, **_: object) -> SimpleNamespace:
        assert os.read(stdin, 99) == b"9 layers"  # the user's
        steps = Path(json.loads(environment[Variable.XLA_TRIAL])["folder"])
        steps.mkdir()
        marks = [{"mark": mark, "s": 2.0 + mark, "counted_from": 0} for mark in range(num_marks)]
        (steps / "0.jsonl").write_text("\n".join(map(json.dumps, [{"facts": {"jax": "1"}}, *marks])))
        return SimpleNamespace(code=0)

    monkeypatch.setattr(xla_trial, "run_limited", run)
    standard_input = StandardInput(reading)
    options = {"change": "", "num_steps": 9, "warmup": 0, "limit_s": 9.0, "standard_input": standard_input}
    made, processes = xla_trial.run_trial(["train"], {}, tmp_path / "t", **options)  # type: ignore[arg-type]
    assert (made.step_s, made.start_s) == ((1.0, 2.0) if is_usable else (None, None))
    assert (processes is not None) == (made.problem is None) == is_usable


def test_a_folder_without_a_step_has_no_processes(tmp_path: Path) -> None:
    assert read_processes(tmp_path) is None
    (tmp_path / "0.jsonl").write_text('{"facts": {}}\nnot json\n')
    assert read_processes(tmp_path) is None


def test_the_interval_is_students_of_the_log_ratios() -> None:
    speedup, interval = speedup_of([(2.0, 1.0), (2.2, 1.0), (1.8, 1.0)], 1)
    assert speedup == pytest.approx((2.0 * 2.2 * 1.8) ** (1 / 3))
    # ln: 0.6931, 0.7885, 0.5878; deviation 0.10038, times t = 8.8602 / sqrt(3): 2 degrees, 5 % over four looks
    assert interval == pytest.approx((speedup / 1.6711, speedup * 1.6711), rel=1e-3)
    assert speedup_of([(2.0, 1.0)], 1)[1] is None
    wider = speedup_of([(2.0, 1.0), (2.2, 1.0), (1.8, 1.0)], 5)[1]
    assert wider is not None and interval is not None and wider[0] < interval[0]


def test_the_verdict_on_two_gpus_follows_from_the_trials_kept_with_it() -> None:
    """`benchmarks/jax_changes_gpu.py` on two H200; the flag did what it says: one all-reduce in place of 97."""
    kept = json.loads((Path(__file__).parents[2] / "benchmarks/results/jax_changes_gpu.json").read_text())
    verdict, (_, *trials) = kept["verdicts"][0], kept["trials"]  # the first trial belongs to no pair
    times: dict[bool, list[float]] = {False: [], True: []}
    for each in trials:
        is_changed = not each["trial"].endswith("-unchanged")
        assert each["all_reduces"] == (1 if is_changed else 97)
        times[is_changed].append(each["step_s"])
    speedup, interval = speedup_of(list(zip(times[False], times[True], strict=True)), 1)
    expected = (verdict["speedup"], *verdict["interval"])  # the kept steps are the upper of two medians
    assert interval is not None and (speedup, *interval) == pytest.approx(expected, rel=5e-3)
    assert verdict["verdict"] == "better" and verdict["interval"][0] > 1.01


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.5, 1.5, 1.5), "better"),
        ((1.011, 1.011, 1.011), "better"),
        ((1.009, 1.009, 1.009), "equivalent"),
        ((0.9, 0.9, 0.9), "worse"),
        ((1.5, 1.0, 0.8), "undecided"),
        ((1.5, 1.5), "undecided"),
        ((), "not reached"),
    ],
)
def test_verdicts_need_three_pairs_and_an_interval_on_one_side(ratios: Sequence[float], verdict: str) -> None:
    pairs = [(trial(ratio), trial(1.0, change=EXACT.name)) for ratio in ratios]
    assert judged(EXACT, pairs, [trial(1.0)], 1).verdict == verdict


def test_a_change_that_fails_is_failed_however_fast() -> None:
    pairs = [(trial(2.0), trial(1.0)), (trial(2.0), trial(None, problem="code 1")), (trial(2.0), trial(1.0))]
    result = judged(EXACT, pairs, [trial(2.0)], 1)
    assert (result.verdict, result.reason) == ("failed", "code 1")


@pytest.mark.parametrize(
    ("safety", "losses", "gate"),
    [
        ("exact", (1.0, 0.5), "passed"),
        ("exact", (1.0, 0.500009), "passed"),  # 1e-5 of the largest loss
        ("exact", (1.0, 0.50002), "failed"),
        ("rounding", (1.0, 0.519), "passed"),
        ("rounding", (1.0, 0.53), "failed"),
        ("exact", (1.0, float("nan")), "failed"),
        ("exact", (), "failed"),  # the unchanged job reports them
    ],
)
def test_losses_must_be_those_of_the_unchanged_job(safety: str, losses: tuple[float, ...], gate: str) -> None:
    change = msgspec.structs.replace(EXACT, safety=safety)
    assert loss_gate(change, [trial(1.0, *losses)], [trial(1.0, 1.0, 0.5), trial(1.0, 1.0, 0.5)]) == gate


def test_losses_may_differ_as_those_of_unchanged_trials_do() -> None:
    baselines = [trial(1.0, 1.0, 0.5), trial(1.0, 1.0, 0.51)]
    assert loss_gate(EXACT, [trial(1.0, 1.0, 0.535)], baselines) == "passed"  # three times their 0.01, from the nearest
    assert loss_gate(EXACT, [trial(1.0, 1.0, 0.545)], baselines) == "failed"
    assert loss_gate(EXACT, [trial(1.0)], [trial(1.0)]) == "no loss was reported"


def request(folder: Path) -> loop.XlaRequest:
    return loop.XlaRequest(
        command=("python", "t.py"), folder=folder, budget_s=1000, num_steps=5, warmup=1, allows_rounding=False
    )


def test_the_loop_accepts_what_is_faster_and_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change halves the step; the cache makes no difference to the start."""
    started: list[str] = []

    def run(command: object, environment: dict[str, str], folder: Path, **options: Any) -> tuple[XlaTrial, Processes]:
        started.append(options["change"])
        is_fast = "--xla_cpu_multi_thread_eigen=true" in environment.get("XLA_FLAGS", "")
        facts = {"platform": "cpu", "devices": 1, "xla_flags": "--xla_cpu_multi_thread_eigen=false"}
        processes = Processes(facts=facts, step_s=((1.0,),), start_s=(5.0,), losses=())
        return trial(0.5 if is_fast else 1.0 + 0.001 * len(started), 2.0, change=options["change"]), processes

    monkeypatch.setattr(loop, "run_trial", run)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    tuning = loop.tune_xla(request(tmp_path), lambda line: None)
    verdicts = {tried.change.name: tried.verdict for tried in tuning.tried}
    assert verdicts == {"xla-cpu-threads": "better", "jax-compilation-cache": "equivalent"}
    flags = "--xla_cpu_multi_thread_eigen=false --xla_cpu_multi_thread_eigen=true"
    assert tuning.environment == {"XLA_FLAGS": flags}
    assert started[:3] == ["", "", "xla-cpu-threads"]
    pairs = [
        started[at : at + 2] for at in range(1, len(started)) if started[at : at + 2].count("xla-cpu-threads") == 1
    ]
    assert ["", "xla-cpu-threads"] in pairs
    assert ["xla-cpu-threads", ""] in pairs
    text = xla_tuning_text(tuning, style=TextStyle())
    assert "xla-cpu-threads makes the step 2.0" in text
    assert "only timed" not in text


def test_a_first_trial_that_is_slow_does_not_end_the_pairs_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """130 s hold a first trial of 40 s and four pairs of 20 s, with 10 s left; by the first one, only one pair."""
    clock = [0.0]

    def run(*_: object, **options: Any) -> tuple[XlaTrial, Processes]:
        clock[0] += 10.0 if clock[0] else 40.0
        facts = {"platform": "cpu", "xla_flags": "--xla_backend_optimization_level=0"}
        processes = Processes(facts=facts, step_s=((1.0,),), start_s=(5.0,), losses=())
        return trial(1.0 + clock[0] % 3, change=options["change"]), processes

    monkeypatch.setattr(loop, "run_trial", run)
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    wanted = msgspec.structs.replace(
        request(tmp_path), budget_s=130.0, allows_rounding=True, only=("xla-optimization=3",)
    )
    tuning = loop.tune_xla(wanted, lambda line: None)
    assert [one.num_pairs for one in tuning.tried] == [4]
    assert (tuning.ended_by, clock[0]) == ("budget", 120.0)


def test_a_job_without_marks_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(loop, "run_trial", lambda *_, **__: (trial(None, problem="no step was marked"), None))
    monkeypatch.setattr(loop, "StandardInput", lambda: SimpleNamespace(missing="it is a terminal"))
    with pytest.raises(InputError, match="no step was marked") as error:
        loop.tune_xla(request(tmp_path), said.append)
    assert said == ["trials have no standard input: it is a terminal"]
    assert "StepTraceAnnotation" in str(error.value.hint)


def test_every_change_is_named_once_and_sets_something() -> None:
    assert len(BY_NAME) == len(CHANGES)
    assert all(isinstance(change, XlaChange) and (change.flags or change.environment) for change in CHANGES)
