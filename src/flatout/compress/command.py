"""Run `flatout compress` from its options to its result: check them, open the folder, run the loop, write the results.

In: commands, limits and a folder. Out: a `Compression`, and files in the folder. It composes the modules of this room
and holds no rule.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.compress.backend import CompressionBackend, Variant
from flatout.compress.catalogue import chosen_rows, unoffered, variant_of
from flatout.compress.commands import BATCH, MODEL, UserCommand
from flatout.compress.journal import NAME as JOURNAL
from flatout.compress.journal import CompressionJournal, ResumedBackend, identity_of
from flatout.compress.loop import CompressionFound, CompressionLoop, CompressionPlan
from flatout.compress.model_files import kind_of_model
from flatout.compress.processes import BENCHMARKS, EVALUATIONS, VARIANTS, CompressionProcesses
from flatout.compress.script_python import installed_packages
from flatout.emit.compression import emit_compression
from flatout.emit.write import write as write_emitted
from flatout.errors import InputError, UsageError
from flatout.launch import StandardInput
from flatout.launch.guard import guarded
from flatout.launch.loaded import STARTUP
from flatout.probe.nvml import Gpus
from flatout.records.compression import RECOMMENDED, Compression, MaxLoss, UnofferedVariant
from flatout.report.compression_html import compression_html
from flatout.report.compression_json import compression_json
from flatout.report.phrases import counted
from flatout.secrets import masked_command
from flatout.tune.result_folder import FolderNames, SearchLimits, open_folder, write_results
from flatout.tune.signals import EndedBySignal, signals_raised

JSON, HTML = "compress.json", "report.html"
_NAMES = FolderNames(
    kind="compression",
    journal=JOURNAL,
    results=(JSON, HTML),
    folders=(EVALUATIONS, VARIANTS, BENCHMARKS, RECOMMENDED),
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressCommand:
    """What to compress, how to judge it, and what limits it."""

    evaluation: UserCommand
    benchmark: UserCommand
    metric: str
    max_loss: MaxLoss
    is_higher_better: bool
    limits: SearchLimits
    final: UserCommand | None = None
    model: Path | None = None
    variants: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()

    def run(self, say: Say) -> Compression:
        """Try the variants, resuming a compression of the same commands in the folder.

        Ctrl-C ends it with what was found so far; no process outlives it.
        """
        self._check()
        variants, unoffered = self._variants()
        journal = CompressionJournal(self.limits.folder, self._identity())
        open_folder(self.limits, _NAMES, resumes=journal.read() is not None)
        try:
            return self._compressed(variants, unoffered, journal, say)
        except (KeyboardInterrupt, EndedBySignal):
            say(f"interrupted; run the same command with --out {self.limits.folder} to resume")
            raise

    def _compressed(
        self,
        variants: Sequence[Variant],
        unoffered: tuple[UnofferedVariant, ...],
        journal: CompressionJournal,
        say: Say,
    ) -> Compression:
        mark = secrets.token_hex(8)
        standard_input = StandardInput()
        if standard_input.missing is not None:
            say(f"evaluations and benchmarks have no standard input: {standard_input.missing}")
        processes = CompressionProcesses(
            self.evaluation,
            self.benchmark,
            self.limits.folder,
            metric=self.metric,
            mark=mark,
            say=say,
            final=self.final,
            model=None if self.model is None else str(self.model),
            max_trials=self.limits.max_trials,
            standard_input=standard_input,
        )
        backend = ResumedBackend(processes, journal)
        if backend.num_recorded:
            say(f"resuming with {counted(backend.num_recorded, 'run')} in {self.limits.folder / JOURNAL}")
        with signals_raised(), guarded(mark):
            found = self._loop(backend, variants, say).run()
        return self._result(found, unoffered, backend.spent_s())

    def _loop(self, backend: CompressionBackend, variants: Sequence[Variant], say: Say) -> CompressionLoop:
        plan = CompressionPlan(
            metric=self.metric,
            is_higher_better=self.is_higher_better,
            max_loss=self.max_loss,
            batches=self.batches or (None,),
            has_final=self.final is not None,
            budget_s=self.limits.budget_s,
        )
        return CompressionLoop(backend, plan, variants, say)

    def _check(self) -> None:
        """Raise UsageError or InputError if the options do not fit each other."""
        if self.benchmark.has_batch != bool(self.batches):
            rule = f"`--batches` needs {BATCH} in `--bench`, and {BATCH} needs `--batches`"
            raise UsageError(rule, hint=f"--bench 'python infer.py --batch {BATCH}' --batches 1,8,64")
        has_place = self.evaluation.has_model or self.benchmark.has_model
        if has_place and self.model is None:
            raise UsageError(f"a command has {MODEL}, but `--model` is missing", hint="--model model.onnx")
        if self.model is not None and not (self.evaluation.has_model and self.benchmark.has_model):
            raise UsageError(f"with `--model`, both commands need {MODEL} where it stands")
        if self.model is not None and not self.model.exists():
            raise InputError(f"`--model` must be a file or a folder, but there is no {self.model}")

    def _variants(self) -> tuple[list[Variant], tuple[UnofferedVariant, ...]]:
        """Return the variants to try, and why others are not offered."""
        kind = kind_of_model(self.model)
        rows = chosen_rows(self.variants, kind)
        packages = sorted({name for row in rows for name in row.needs})
        installed = installed_packages(self.evaluation, packages)
        has_gpu = bool(Gpus().facts())
        reasons = {row.name: unoffered(row, installed, has_gpu=has_gpu, kind=kind) for row in rows}
        offered = [variant_of(row) for row in rows if reasons[row.name] is None]
        refused = [UnofferedVariant(name=name, reason=reason) for name, reason in reasons.items() if reason is not None]
        if not offered:
            raise InputError(f"no variant can be tried: {refused[0].name}: {refused[0].reason}")
        return offered, tuple(refused)

    def _result(self, found: CompressionFound, unoffered: tuple[UnofferedVariant, ...], took_s: float) -> Compression:
        return Compression(
            eval_command=_shown(self.evaluation),
            eval_final_command=None if self.final is None else _shown(self.final),
            bench_command=_shown(self.benchmark),
            model=None if self.model is None else str(self.model),
            metric=self.metric,
            is_higher_better=self.is_higher_better,
            max_loss=self.max_loss,
            batches=self.batches,
            untouched=found.untouched,
            evaluation=found.evaluation,
            is_repeatable=found.is_repeatable,
            variants=found.variants,
            unoffered=unoffered,
            recommended=found.recommended,
            num_trials=found.num_trials,
            num_screening_starts=found.num_screening_starts,
            took_s=took_s,
            budget_s=self.limits.budget_s,
            ended_by=found.ended_by,
        )

    def write(self, result: Compression, typed: Sequence[str]) -> list[str]:
        """Write the results, and what runs a script with a recommended variant; return the lines to print."""
        folder = self.limits.folder
        page = compression_html(result, typed, folder)
        write_results(folder, {JSON: compression_json(result, typed), HTML: page})
        lines = [f"wrote {folder / HTML}"]
        if result.ended_by != "all_tried":
            more = ", and a larger --budget," if result.ended_by == "budget" else ""
            lines.append(f"the same command with --out {folder}{more} resumes it")
        for emitted in emit_compression(result, STARTUP):
            lines.append(f"wrote {write_emitted(emitted, folder, force=True)}")
            lines += [f"{emitted.path}: {note}" for note in emitted.notes]
        return lines

    def _identity(self) -> str:
        """Return a digest of what the runs depend on; the limits of the search may differ."""
        model = self.model
        file = model.stat() if model is not None and model.is_file() else None
        return identity_of(
            str(self.limits.folder.absolute()),
            *(self.evaluation, self.benchmark, self.final),
            *(self.metric, self.max_loss, self.is_higher_better, self.batches, self.variants),
            *(str(model), None if file is None else (file.st_size, file.st_mtime_ns)),
        )


def _shown(command: UserCommand) -> tuple[str, ...]:
    variables = [f"{name}={value}" for name, value in command.variables.items()]
    return tuple(masked_command([*variables, *command.words]))
