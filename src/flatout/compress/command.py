"""Run `flatout compress` from its options to its result: check them, open the folder, run the loop, write the results.

In: commands, limits and a folder. Out: a `Compression`, and files in the folder. It composes the modules of this room
and holds no rule.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.compress.backend import CompressionBackend, Variant
from flatout.compress.catalogue import chosen_rows, unoffered, variant_of
from flatout.compress.commands import BATCH, MODEL, UserCommand
from flatout.compress.loop import CompressionFound, CompressionLoop, CompressionPlan
from flatout.compress.model_files import kind_of_model
from flatout.compress.processes import BENCHMARKS, EVALUATIONS, VARIANTS, CompressionProcesses
from flatout.compress.script_python import installed_packages
from flatout.errors import InputError, OutputError, UsageError
from flatout.launch.guard import guarded
from flatout.probe.nvml import Gpus
from flatout.records.compression import Compression, MaxLoss, UnofferedVariant
from flatout.report.compression_html import compression_html
from flatout.report.compression_json import compression_json
from flatout.secrets import masked_command, write_private
from flatout.tune.signals import signals_raised

JSON, HTML = "compress.json", "report.html"
_FOLDERS = (EVALUATIONS, VARIANTS, BENCHMARKS)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressCommand:
    """What to compress, how to judge it, and the folder for its files."""

    evaluation: UserCommand
    benchmark: UserCommand
    metric: str
    max_loss: MaxLoss
    is_higher_better: bool
    folder: Path
    final: UserCommand | None = None
    model: Path | None = None
    variants: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    budget_s: float = 3600.0
    max_trials: int | None = None
    force: bool = False

    def run(self, say: Say) -> Compression:
        """Try the variants. Ctrl-C ends it with what was found so far; no process outlives it."""
        self._check()
        variants, unoffered = self._variants()
        self._claim()
        mark = secrets.token_hex(8)
        backend = CompressionProcesses(
            self.evaluation,
            self.benchmark,
            self.folder,
            metric=self.metric,
            mark=mark,
            say=say,
            final=self.final,
            model=None if self.model is None else str(self.model),
            max_trials=self.max_trials,
        )
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
            budget_s=self.budget_s,
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
            took_s=took_s,
            budget_s=self.budget_s,
            ended_by=found.ended_by,
        )

    def write(self, result: Compression, typed: Sequence[str]) -> list[str]:
        """Write the results; return the lines to print."""
        try:
            write_private(self.folder / JSON, compression_json(result, typed))
            write_private(self.folder / HTML, compression_html(result, typed, self.folder).encode())
        except OSError as error:
            raise _not_written(self.folder, error) from error
        return [f"wrote {self.folder / HTML}"]

    def _claim(self) -> None:
        """Create the folder. Raise OutputError if it holds anything but a former result that `force` replaces."""
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is not a folder", hint="pass another --out")
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        if names - {JSON, HTML, *_FOLDERS}:
            raise OutputError(f"{folder} already has other files", hint="pass another --out")
        if names and not self.force:
            raise OutputError(f"{folder} already has a result", hint="pass another --out, or --force to replace it")
        try:
            for name in _FOLDERS:
                shutil.rmtree(folder / name, ignore_errors=True)
                (folder / name).mkdir(parents=True)
            for name in (JSON, HTML):
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise _not_written(folder, error) from error


def _shown(command: UserCommand) -> tuple[str, ...]:
    variables = [f"{name}={value}" for name, value in command.variables.items()]
    return tuple(masked_command([*variables, *command.words]))


def _not_written(folder: Path, error: OSError) -> OutputError:
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"{folder} cannot be written to: {reason}", hint="pass another --out")
