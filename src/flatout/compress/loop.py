"""The compression: evaluate the untouched model and each variant, compare speeds, choose, and judge the chosen.

In: a backend, variants and a plan. Out: a `CompressionFound`. The order is: accuracy first, on the data that may
choose; then speed, of what was applied and is not shown to be worse: one start of each orders them, and comparisons in
turn decide, of what looks fastest first. If nothing is left, variants that lose too much are tried again without the
layers that cost the most. Then comes the final word on held-out data, on the fastest and the smallest of those that are
left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from flatout.compress.backend import (
    UNTOUCHED_VARIANT,
    Benched,
    CompressionBackend,
    EvaluationRun,
    NotPreparedError,
    Variant,
)
from flatout.compress.choose import dominated_by, finalists, is_slower, looks_slower, refusal
from flatout.compress.held_out import held_out_part, is_repeatable, search_part
from flatout.compress.left_out import SEARCHABLE, skipped_layers
from flatout.compress.screening import FEWEST_VARIANTS, screening, with_screening
from flatout.errors import InputError
from flatout.records.compression import (
    UNTOUCHED,
    CompressionEndedBy,
    Evaluation,
    LossVerdict,
    MaxLoss,
    Refusal,
    SpeedAt,
    VariantOutcome,
    VariantResult,
)
from flatout.verdict.non_inferiority import LEVEL, judge_loss

Say = Callable[[str], None]
MOST_SEARCHED = 2  # variants of which some layers are kept unchanged
FEWEST_TRIALS = 8  # that a comparison gets the time for, where the budget is too short for all of them


class CompressionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the variants."""

    metric: str
    is_higher_better: bool
    max_loss: MaxLoss
    batches: tuple[int | None, ...] = (None,)
    has_final: bool = False  # the user has another evaluation for the end
    budget_s: float = 3600.0


class CompressionFound(msgspec.Struct, frozen=True, kw_only=True):
    """What a compression found."""

    untouched: VariantResult
    evaluation: Evaluation
    is_repeatable: bool | None
    variants: tuple[VariantResult, ...]
    recommended: tuple[str, ...]
    num_trials: int
    num_screening_starts: int
    ended_by: CompressionEndedBy


class _StopError(Exception):
    def __init__(self, ended_by: CompressionEndedBy) -> None:
        super().__init__(ended_by)
        self.ended_by: CompressionEndedBy = ended_by


class CompressionLoop:
    """One compression."""

    def __init__(
        self, backend: CompressionBackend, plan: CompressionPlan, variants: Sequence[Variant], say: Say
    ) -> None:
        self._backend, self._plan, self._say = backend, plan, say
        self._variants = {variant.name: variant for variant in variants}
        self._results: dict[str, VariantResult] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._untouched = VariantResult(name=UNTOUCHED, applied_by="patch", outcome="measured")
        self._evaluation = Evaluation(value=0.0)
        self._is_repeatable: bool | None = None
        self._num_trials, self._num_starts = 0, 0
        self._trial_s = 0.0  # that a start of the screening took, on average; 0: unknown
        self._ended_by: CompressionEndedBy = "all_tried"

    def run(self) -> CompressionFound:
        """Try the variants until all are judged or the budget ends. Raises InputError if the untouched model fails."""
        self._evaluate_untouched()
        try:
            for variant in tuple(self._variants.values()):
                self._evaluate(variant)
            self._bench_all()
            if not self._eligible():
                self._leave_layers_out()
                self._bench_all()
            self._judge_finalists()
        except _StopError as stop:
            self._end_early(stop.ended_by)
        except KeyboardInterrupt:
            self._end_early("interrupted")
        return self._found()

    def _end_early(self, ended_by: CompressionEndedBy) -> None:
        """Judge what was measured, if that takes no further run."""
        self._ended_by = ended_by
        if not self._plan.has_final:
            self._judge_finalists()

    def _evaluate_untouched(self) -> None:
        """Evaluate the untouched model twice: if its results differ, samples cannot be compared one by one."""
        evaluated = [self._backend.evaluate(UNTOUCHED_VARIANT, is_final=False) for _ in range(2)]
        evaluations = [_evaluation_of(each) for each in evaluated]
        self._evaluation = evaluations[0]
        self._is_repeatable = is_repeatable(*evaluations)
        report = evaluated[0].report
        self._untouched = msgspec.structs.replace(
            self._untouched,
            num_modules=report.num_modules if report is not None else None,
            weight_bytes=report.bytes_before if report is not None else None,
            disk_bytes=evaluated[0].disk_bytes,
            disk_path=evaluated[0].disk_path,
        )
        self._say(f"untouched: {self._plan.metric} {self._evaluation.value:g}")

    def _evaluate(self, variant: Variant) -> None:
        self._check_budget()
        try:
            variant = self._variants[variant.name] = self._backend.prepared(variant)
        except NotPreparedError as error:
            self._keep(_not_applied(variant, str(error)))
            return
        evaluated = self._backend.evaluate(variant, is_final=False)
        result = _result_of(variant, evaluated)
        if result.outcome == "measured" and evaluated.evaluation is not None:
            self._evaluations[variant.name] = evaluated.evaluation
            result = msgspec.structs.replace(result, search=self._search_verdict(evaluated.evaluation))
        self._keep(result)

    def _keep(self, result: VariantResult) -> None:
        self._results[result.name] = result
        self._say(_told(result, self._plan.metric))

    def _search_verdict(self, evaluation: Evaluation) -> LossVerdict:
        has_final = self._plan.has_final
        untouched, own = (search_part(each, has_final=has_final) for each in (self._evaluation, evaluation))
        return self._loss(untouched, own, LEVEL)

    def _loss(self, untouched: Evaluation, variant: Evaluation, level: float) -> LossVerdict:
        return judge_loss(
            untouched,
            variant,
            self._plan.max_loss,
            is_higher_better=self._plan.is_higher_better,
            is_paired=self._is_repeatable is not False,
            level=level,
        )

    def _bench_all(self) -> None:
        """Compare the speed of what was applied and does not lose too much.

        What looks fastest comes first. What was slower at one batch size cannot be recommended any more, so that its
        other batch sizes come last.
        """
        if len(self._waiting()) >= FEWEST_VARIANTS:
            self._screen(self._waiting())
        names = sorted(self._waiting(), key=self._screened_speedup, reverse=True)
        left = [(name, batch) for name in names for batch in self._plan.batches]
        while left:
            self._check_budget()
            name, batch = next((each for each in left if not is_slower(self._results[each[0]])), left[0])
            budget_s = self._share_s(len(left))
            left.remove((name, batch))
            benched = self._backend.bench(self._variants[name], batch, budget_s)
            self._num_trials += benched.num_trials
            self._results[name] = self._with_benchmark(self._results[name], batch, benched)
            if benched.is_interrupted:
                raise _StopError("interrupted")
            if benched.verdict is None:
                left = [each for each in left if each[0] != name]

    def _waiting(self) -> list[str]:
        """Return the variants whose speed is still to be compared."""
        waiting = [result for result in self._results.values() if not result.speeds]
        return [result.name for result in waiting if self._is_worth_a_benchmark(result)]

    def _is_worth_a_benchmark(self, result: VariantResult) -> bool:
        is_worse = result.search is not None and result.search.outcome == "inferior"
        return result.outcome == "measured" and not is_worse and not looks_slower(result)

    def _screened_speedup(self, name: str) -> float:
        screened = self._results[name].screened
        return 0.0 if screened is None else screened.speedup

    def _left_s(self) -> float:
        return self._plan.budget_s - self._backend.spent_s()

    def _share_s(self, num_left: int) -> float:
        """Return the time for the next of several comparisons: an equal share, but enough for a verdict if possible."""
        left_s = self._left_s()
        return min(max(left_s / num_left, FEWEST_TRIALS * self._trial_s), left_s)

    def _screen(self, names: Sequence[str]) -> None:
        """Start each variant once at the first batch size, and keep how fast it looks."""
        variants = [self._variants[name] for name in names]
        found = screening(self._backend, variants, self._plan.batches[0], self._left_s, self._say)
        self._num_starts += found.num_starts
        self._trial_s = found.trial_s
        for name, start in found.failed.items():
            outcome: VariantOutcome = "failed" if start.is_applied else "not_applied"
            self._results[name] = msgspec.structs.replace(self._results[name], outcome=outcome, reason=start.problem)
        for name, speed in found.speeds.items():
            self._results[name] = with_screening(self._results[name], speed, found.starts[name])

    def _with_benchmark(self, result: VariantResult, batch: int | None, benched: Benched) -> VariantResult:
        """Return the result with a comparison, and keep what its trials say about the untouched model."""
        if not benched.is_applied:
            return msgspec.structs.replace(result, outcome="not_applied", reason=benched.problem)
        if benched.verdict is None:
            return msgspec.structs.replace(result, outcome="failed", reason=benched.problem)
        self._untouched = msgspec.structs.replace(
            self._untouched,
            memory_bytes=_most(self._untouched.memory_bytes, benched.untouched_memory_bytes),
            memory_kind=self._untouched.memory_kind or benched.memory_kind,
            load_s=self._untouched.load_s or benched.untouched_load_s,
        )
        speed = SpeedAt(
            batch=batch,
            verdict=benched.verdict,
            untouched_step_s=benched.untouched_step_s,
            variant_step_s=benched.variant_step_s,
        )
        return msgspec.structs.replace(
            result,
            speeds=(*result.speeds, speed),
            memory_bytes=_most(result.memory_bytes, benched.variant_memory_bytes),
            memory_kind=result.memory_kind or benched.memory_kind,
            load_s=result.load_s or benched.variant_load_s,
        )

    def _judge_finalists(self) -> None:
        """Judge the chosen variants on data that chose nothing; several share the error rate."""
        chosen = finalists(self._eligible())
        if not chosen:
            return
        untouched = self._held_out(UNTOUCHED_VARIANT, self._evaluation)
        if untouched is None:
            return
        for name in chosen:
            own = self._held_out(self._variants[name], self._evaluations[name])
            if own is None:
                continue
            final = self._loss(untouched, own, LEVEL / len(chosen))
            self._results[name] = msgspec.structs.replace(self._results[name], final=final)

    def _held_out(self, variant: Variant, evaluation: Evaluation) -> Evaluation | None:
        """Return the evaluation on held-out data; None if there are none, or if it fails."""
        if not self._plan.has_final:
            return held_out_part(evaluation)
        evaluated = self._backend.evaluate(variant, is_final=True)
        if evaluated.evaluation is None:
            self._say(f"{variant.name}: the final evaluation failed: {evaluated.problem}")
        return evaluated.evaluation

    def _eligible(self) -> list[VariantResult]:
        return [result for result in self._results.values() if self._refusal(result) is None]

    def _leave_layers_out(self) -> None:
        """Try the variants that lose too much again, without the layers that cost the most."""
        failed = [result for result in self._results.values() if self._loses_too_much(result)]
        failed.sort(key=lambda result: result.search.loss if result.search is not None else 0.0)
        for result in failed[:MOST_SEARCHED]:
            variant = self._variants[result.name]
            self._check_budget()
            found = self._backend.sensitivity(variant)
            for skip in skipped_layers(found):
                part = msgspec.structs.replace(variant, name=f"{variant.name} without {len(skip)}", skip=skip)
                self._variants[part.name] = part
                self._evaluate(part)
                if self._passes_search(self._results[part.name]):
                    break

    def _loses_too_much(self, result: VariantResult) -> bool:
        has_layers = self._variants[result.name].kind in SEARCHABLE
        return has_layers and result.search is not None and result.search.loss > self._plan.max_loss.value

    def _passes_search(self, result: VariantResult) -> bool:
        search = result.search
        if search is None or search.outcome in ("inferior", "unknown"):
            return False
        return search.loss <= self._plan.max_loss.value

    def _refusal(self, result: VariantResult) -> Refusal | None:
        return refusal(result, self._untouched, self._plan.max_loss, len(self._plan.batches))

    def _check_budget(self) -> None:
        if self._left_s() <= 0:
            raise _StopError("budget")

    def _found(self) -> CompressionFound:
        measured = [self._untouched_as_variant(), *self._results.values()]
        results = []
        for result in self._results.values():
            why = self._refusal(result) or _final_refusal(result, has_data=self._has_held_out_data())
            results.append(
                msgspec.structs.replace(
                    result,
                    is_recommended=why is None,
                    refusal=why,
                    dominated_by=dominated_by(result, measured),
                )
            )
        return CompressionFound(
            untouched=self._untouched,
            evaluation=msgspec.structs.replace(self._evaluation, samples=()),
            is_repeatable=self._is_repeatable,
            variants=tuple(results),
            recommended=tuple(result.name for result in results if result.is_recommended),
            num_trials=self._num_trials,
            num_screening_starts=self._num_starts,
            ended_by=self._ended_by,
        )

    def _has_held_out_data(self) -> bool:
        return self._plan.has_final or bool(self._evaluation.samples)

    def _untouched_as_variant(self) -> VariantResult:
        """Return the untouched model as one of the variants, with a speedup of 1 and no loss."""
        loss = self._loss(self._evaluation, self._evaluation, LEVEL)
        return msgspec.structs.replace(self._untouched, search=msgspec.structs.replace(loss, loss=0.0))


def _evaluation_of(evaluated: EvaluationRun) -> Evaluation:
    if evaluated.evaluation is None:
        raise InputError(f"the evaluation of the untouched model fails: {evaluated.problem}")
    return evaluated.evaluation


def _result_of(variant: Variant, evaluated: EvaluationRun) -> VariantResult:
    """Return what an evaluation says about a variant, without its accuracy."""
    report = evaluated.report
    result = VariantResult(
        name=variant.name,
        applied_by=variant.applied_by,
        kind=variant.kind,
        options=dict(variant.options),
        model_path=variant.model,
        outcome="measured",
        skipped=variant.skip,
        disk_bytes=evaluated.disk_bytes,
        disk_path=evaluated.disk_path,
        modules=report.names if report is not None else (),
        num_modules=report.num_modules if report is not None else None,
        weight_bytes=report.bytes_after if report is not None else None,
        notes=report.notes if report is not None else (),
    )
    if report is None and evaluated.problem:
        return msgspec.structs.replace(result, outcome="failed", reason=evaluated.problem)
    if variant.applied_by == "patch" and (report is None or not report.applied):
        reason = report.reason if report is not None else None
        return _not_applied(variant, reason or "no process reported a model that infers")
    if evaluated.evaluation is None:
        return msgspec.structs.replace(result, outcome="failed", reason=evaluated.problem)
    return result


def _not_applied(variant: Variant, reason: str) -> VariantResult:
    return VariantResult(name=variant.name, applied_by=variant.applied_by, outcome="not_applied", reason=reason)


def _final_refusal(result: VariantResult, *, has_data: bool) -> Refusal | None:
    """Return why an eligible variant is not recommended; None if it is."""
    if not has_data:
        return "no_held_out_data"
    if result.final is None:
        return "another_chosen"
    if result.final.outcome == "inferior":
        return "inferior"
    return None if result.final.outcome == "non_inferior" else "loss_not_shown"


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _told(result: VariantResult, metric: str) -> str:
    if result.search is None:
        return f"{result.name}: {result.outcome.replace('_', ' ')}: {result.reason}"
    return f"{result.name}: {metric} {result.search.variant:g}, {result.search.outcome.replace('_', '-')}"
