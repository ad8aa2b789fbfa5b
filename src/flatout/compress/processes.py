"""Run the user's evaluation and benchmark as processes of this machine.

An evaluation is run as it is, with FLATOUT_COMPRESS in its environment; its report and its output are kept. A benchmark
is a comparison of `flatout compare`: untouched trials and trials of the variant in turn, until the verdict stands.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from flatout.compare.arm_runner import JOURNAL, arm_runner
from flatout.compare.arms import ArmRequest
from flatout.compare.command import CompareCommand
from flatout.compare.options import CompareOptions
from flatout.compress.backend import (
    Benched,
    EvaluationRun,
    NotPreparedError,
    ScreeningStart,
    Sensitivity,
    Variant,
)
from flatout.compress.commands import UserCommand
from flatout.compress.model_files import make_model
from flatout.compress.onnx_files import NotMadeError
from flatout.compress.printed import read_evaluation
from flatout.compress.reports import ModelReport, read_report
from flatout.compress.sizes import bytes_on_disk
from flatout.errors import FlatoutError
from flatout.input_files import decode_json, read_bytes, read_lines
from flatout.inside.protocol import Variable, partial_name
from flatout.launch import ExitStatus, LocalLauncher, StandardInput
from flatout.launch.loaded import with_inside
from flatout.records.change import ChangeSet
from flatout.records.compression import UNTOUCHED, MemoryKind, variant_file_name
from flatout.records.start_costs import StartCosts
from flatout.records.trial import TrialResult
from flatout.secrets import Masker, mask_file
from flatout.trial.journal import JournaledTrial
from flatout.trial.result import error_line
from flatout.tune.trial_length import NUM_TRIALS, trial_length
from flatout.tune.trials import measured_times

Say = Callable[[str], None]
UNCHANGED = "none"  # the kind that only reports
WEIGHTS, EXPORT = "weights.pt", "model.onnx"
CALIBRATION, SENSITIVITY = "ranges.json", "sensitivity.json"
EVALUATIONS, VARIANTS, BENCHMARKS = "evaluations", "variants", "benchmarks"
SCREENING = "screening"  # the folder of its starts, in that of the benchmarks
SCREENED_EFFECT = 0.2  # the difference in speed that one start should help to see
OPEN_ENDS = ("time_budget", "trial_budget", "interrupted")  # of a comparison that more trials can still decide


class CompressionProcesses:
    """Runs the commands in the user's working folder, and keeps outputs, weights and trials in `folder`."""

    def __init__(
        self,
        evaluation: UserCommand,
        benchmark: UserCommand,
        folder: Path,
        *,
        metric: str,
        mark: str,
        say: Say,
        final: UserCommand | None = None,
        model: str | None = None,
        limit_s: float = 3600.0,
        max_trials: int | None = None,
        standard_input: StandardInput | None = None,
    ) -> None:
        """Give each run this standard input from its beginning; None: ours."""
        self._evaluation, self._final, self._benchmark = evaluation, final, benchmark
        self._folder, self._metric, self._mark, self._say = folder, metric, mark, say
        self._model = model
        self._limit_s, self._max_trials = limit_s, max_trials
        self._standard_input = standard_input or StandardInput()
        self._num_evaluations = len(list((folder / EVALUATIONS).glob("*")))  # of the compression that is resumed
        self._num_starts = len(list((folder / BENCHMARKS / SCREENING).glob("*")))
        self._untouched_starts: dict[int | None, list[TrialResult]] = {}  # by batch size
        self._began_s = time.monotonic()

    def spent_s(self) -> float:
        return time.monotonic() - self._began_s

    def evaluate(self, variant: Variant, *, is_final: bool) -> EvaluationRun:
        """Run the evaluation with the variant. Its weights are written by the first run."""
        command = self._final if is_final and self._final is not None else self._evaluation
        command = command.filled(model=variant.model or self._model)
        folder = self._next_folder(variant_file_name(variant.name))
        weights = self._folder / VARIANTS / variant_file_name(variant.name) / _weights_name(variant)
        own_file = variant.model or (self._model if variant.kind is None else None)
        has_weights = own_file is not None or weights.exists()
        saved = None if has_weights else _unsaved(weights)
        variables = {Variable.COMPRESS: _asked(variant, saved), Variable.REPORTS: str(folder)}
        ended, output = self._run(command, variables, folder)
        problem = _problem(ended, output)
        if saved is not None and saved.exists() and not problem:
            saved.replace(weights)
        report = read_report(folder)
        disk = Path(own_file) if own_file is not None else weights
        evaluated = EvaluationRun(
            evaluation=None,
            report=report,
            disk_bytes=bytes_on_disk(disk),
            disk_path=str(disk) if disk.exists() else None,
        )
        if problem:
            return msgspec.structs.replace(evaluated, problem=problem)
        option = "--eval-final" if is_final else "--eval"
        return self._with_metric(evaluated, output, option)

    def _with_metric(self, evaluated: EvaluationRun, output: Path, option: str) -> EvaluationRun:
        """Add what the evaluation printed; the problem with it if it printed something else."""
        try:
            evaluation = read_evaluation(output, self._metric, option)
        except FlatoutError as error:
            problem = f"{error} ({error.hint})" if error.hint else str(error)
            return msgspec.structs.replace(evaluated, problem=problem)
        return msgspec.structs.replace(evaluated, evaluation=evaluation)

    def _next_folder(self, name: str) -> Path:
        """Create the folder for the reports of the next run of the evaluation."""
        folder = self._folder / EVALUATIONS / f"{self._num_evaluations:03d}-{name}"
        self._num_evaluations += 1
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def prepared(self, variant: Variant) -> Variant:
        """Return the variant with the file that it needs: that of a calibration, or the one in the model's place.

        Raises NotPreparedError if that cannot be made.
        """
        folder = (self._folder / VARIANTS / variant_file_name(variant.name)).absolute()
        if variant.applied_by == "files":
            try:
                made = make_model(variant.name, Path(self._model or ""), folder)
            except NotMadeError as error:
                raise NotPreparedError(str(error)) from error
            return msgspec.structs.replace(variant, model=str(made))
        if not variant.needs_calibration or "calibration" in variant.options:
            return variant
        file = folder / CALIBRATION
        self._measure("calibration", {"variant": UNCHANGED, "record": str(file)}, folder)
        return msgspec.structs.replace(variant, options={**variant.options, "calibration": str(file)})

    def sensitivity(self, variant: Variant) -> dict[str, Sensitivity]:
        """Run the evaluation to measure what each layer's compression alone does; return {} if that fails."""
        folder = (self._folder / VARIANTS / variant_file_name(variant.name)).absolute()
        file = folder / SENSITIVITY
        self._measure("sensitivity", {"variant": variant.kind, "sensitivity": str(file), **variant.options}, folder)
        try:
            return decode_json(read_bytes(file), dict[str, Sensitivity])
        except (OSError, msgspec.DecodeError):
            return {}

    def _measure(self, what: str, asked: Mapping[str, Any], folder: Path) -> None:
        """Run the evaluation for what is asked of the process, not for its metric."""
        folder.mkdir(parents=True, exist_ok=True)
        reports = self._next_folder(what)
        command = self._evaluation.filled(model=self._model)
        self._run(command, {Variable.COMPRESS: json.dumps(asked), Variable.REPORTS: str(reports)}, reports)

    def _run(self, command: UserCommand, variables: Mapping[str, str], folder: Path) -> tuple[ExitStatus, Path]:
        output = folder / "output.log"
        environment = with_inside({**os.environ, **command.variables, **variables, Variable.TUNING: self._mark})
        try:
            launcher = LocalLauncher(self._standard_input)
            ended = launcher.run(command.words, environment, output=output, limit_s=self._limit_s)
        finally:
            with suppress(OSError):
                mask_file(output, Masker(environment, command.words))
        return ended, output

    def start(self, variant: Variant, batch: int | None, budget_s: float, num_starts: int) -> ScreeningStart:
        """Start the benchmark once with the variant; `budget_s` is for `num_starts` and the trials of a comparison."""
        name = f"{self._num_starts:03d}-{variant_file_name(variant.name)}"
        folder = (self._folder / BENCHMARKS / SCREENING / name).absolute()
        self._num_starts += 1
        untouched = self._untouched_starts.setdefault(batch, [])
        rule = trial_length(
            measured_times(untouched, None),
            effect=SCREENED_EFFECT,
            budget_left_s=budget_s,
            num_trials=num_starts + NUM_TRIALS,
        )
        is_untouched = variant.name == UNTOUCHED
        try:
            runner = arm_runner(
                self._arm("A" if is_untouched else "B", variant, batch),
                folder,
                budget_s=max(budget_s, 1.0),
                standard_input=self._standard_input,
                mark=self._mark,
                say=lambda line: None,
            )
            trial = runner.trial(ChangeSet(), rule)
        except FlatoutError as error:
            return ScreeningStart(trial=None, problem=str(error))
        if is_untouched and trial.is_complete:
            untouched.append(trial)
        return _screening_start(variant, trial, folder)

    def bench(self, variant: Variant, batch: int | None, budget_s: float) -> Benched:
        """Compare the variant's speed with the untouched model's, in turn, until the verdict stands."""
        at = "" if batch is None else f"-batch-{batch}"
        folder = self._folder / BENCHMARKS / f"{variant_file_name(variant.name)}{at}"
        comparing = CompareCommand(
            a=self._arm("A", Variant(name="untouched"), batch),
            b=self._arm("B", variant, batch),
            folder=folder,
            options=CompareOptions(budget_s=max(budget_s, 1.0), max_trials=self._max_trials, num_profiles=0),
            standard_input=self._standard_input,
        )
        try:
            result, code = comparing.run(self._progress(variant, batch))
        except FlatoutError as error:
            report = _last_report(folder / "b")
            is_applied = variant.kind is None or report is None or report.applied
            problem = str(error) if is_applied else f"in the benchmark: {report.reason if report else ''}"
            return Benched(verdict=None, problem=problem, is_applied=is_applied)
        reports = {arm: _reports(folder / arm) for arm in ("a", "b")}
        benched = Benched(
            verdict=result.verdict,
            untouched_step_s=result.a.step_s,
            variant_step_s=result.b.step_s,
            untouched_memory_bytes=_memory(reports["a"]),
            variant_memory_bytes=_memory(reports["b"]),
            memory_kind=_memory_kind([*reports["a"], *reports["b"]]),
            untouched_load_s=_load_s(folder / "a"),
            variant_load_s=_load_s(folder / "b"),
            num_trials=result.num_trials,
            is_interrupted=code is not None,
            is_open=result.ended_by in OPEN_ENDS,
        )
        unapplied = [report for report in reports["b"] if not report.applied]
        if variant.kind is not None and (unapplied or not reports["b"]):
            reason = unapplied[0].reason if unapplied else "no process reported a model that infers"
            return msgspec.structs.replace(benched, is_applied=False, problem=f"in the benchmark: {reason}")
        return benched

    def _arm(self, name: Any, variant: Variant, batch: int | None) -> ArmRequest:
        command = self._benchmark.filled(model=variant.model or self._model, batch=batch)
        return ArmRequest(
            name=name,
            command=command.words,
            variables={**command.variables, Variable.COMPRESS: _asked(variant, None)},
        )

    def _progress(self, variant: Variant, batch: int | None) -> Say:
        """Return what prints the lines of a comparison that are of its trials."""
        at = "" if batch is None else f", batch {batch}"

        def say(line: str) -> None:
            if "trial" in line and line.lstrip()[:1].isdigit():
                self._say(f"{variant.name}{at}: {line.strip()}")

        return say


def _asked(variant: Variant, save: Path | None) -> str:
    asked = {"variant": variant.kind or UNCHANGED, "skip": list(variant.skip), **variant.options}
    if save is not None:
        asked["save"] = str(save.absolute())
    return json.dumps(asked)


def _screening_start(variant: Variant, trial: TrialResult, folder: Path) -> ScreeningStart:
    """Return what a trial and its report say about a variant, without what only gates need."""
    report = _last_report(folder)
    is_applied = variant.kind is None or (report.applied if report is not None else not trial.is_complete)
    if not is_applied:
        reason = report.reason if report is not None else "no process reported a model that infers"
        return ScreeningStart(trial=None, problem=f"in the benchmark: {reason}", is_applied=False)
    if not trial.is_complete:
        return ScreeningStart(trial=None, problem=trial.problem)
    return ScreeningStart(
        trial=msgspec.structs.replace(trial, losses=(), gradients=(), model_outputs=(), start=()),
        memory_bytes=report.memory_bytes if report is not None else None,
        memory_kind=report.memory_kind if report is not None else None,
        load_s=None if trial.start_costs is None else _start_s(trial.start_costs),
    )


def _weights_name(variant: Variant) -> str:
    return EXPORT if (variant.kind or "").startswith("onnx") else WEIGHTS


def _problem(ended: ExitStatus, output: Path) -> str:
    if ended.is_timed_out:
        return "it took longer than the time limit"
    if ended.code == 0:
        return ""
    return error_line(output)


def _recordings(arm: Path) -> Iterable[Path]:
    return sorted(arm.glob("runs/trial-*/recording"))


def _reports(arm: Path) -> list[ModelReport]:
    found = [read_report(folder) for folder in _recordings(arm)]
    return [report for report in found if report is not None]


def _last_report(arm: Path) -> ModelReport | None:
    return next(iter(reversed(_reports(arm))), None)


def _memory(reports: Sequence[ModelReport]) -> int | None:
    known = [report.memory_bytes for report in reports if report.memory_bytes is not None]
    return int(median(known)) if known else None


def _memory_kind(reports: Sequence[ModelReport]) -> MemoryKind | None:
    """Return what the reports call memory; None if they differ, so that no two of them are compared."""
    kinds = {report.memory_kind for report in reports if report.memory_bytes is not None}
    return kinds.pop() if len(kinds) == 1 else None


def _load_s(arm: Path) -> float | None:
    """Return the median time that the script took from the import of torch to the end of its first call."""
    times = [_start_s(costs) for result in _trials(arm / JOURNAL) if (costs := result.start_costs) is not None]
    return median(times) if times else None


def _start_s(costs: StartCosts) -> float:
    return costs.setup_s + costs.first_batch_s + costs.first_step_s


def _trials(journal: Path) -> list[TrialResult]:
    trials = []
    with suppress(OSError):
        for line in read_lines(journal):
            with suppress(msgspec.DecodeError):
                trials.append(decode_json(line, JournaledTrial, strict=False).result)
    return [trial for trial in trials if trial.is_complete]


def _unsaved(weights: Path) -> Path:
    """Return where the run writes the weights, which get their name once they are complete."""
    partial = weights.with_name(partial_name(weights.name))
    partial.parent.mkdir(parents=True, exist_ok=True)
    return partial
