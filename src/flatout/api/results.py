"""What the functions of `flatout.api` return: the records behind `--json`, with methods to look at them elsewhere.

Each class is a record (`isinstance(result, Diagnosis)`), so its fields are those of the reference page for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from flatout.errors import UsageError
from flatout.records.comparison import Comparison
from flatout.records.compression import Compression
from flatout.records.diagnosis import Diagnosis
from flatout.records.plan import Plan
from flatout.records.recording import Recording
from flatout.records.replay import ReplayReport
from flatout.records.step_series import LogChange, LogSide
from flatout.records.tuning import TuneResult
from flatout.report.diff import DiagnosisDiff

if TYPE_CHECKING:
    from pandas import DataFrame

    from flatout.launch import ExitStatus
    from flatout.plan.search_context import SearchContext

Row = dict[str, Any]
_KEPT_TOGETHER = {"evidence"}  # dictionaries whose keys differ from row to row


class Result:
    """The methods that all results have. `tables` are the names that `to_pandas` and `rows` take, the default first."""

    __slots__ = ()
    tables: ClassVar[tuple[str, ...]]
    call: ClassVar[str]  # the function that returns this result, which stands for the command in the envelope

    @classmethod
    def of(cls, record: msgspec.Struct, **facts: object) -> Self:
        """Return the record as a result. `facts` are kept outside its fields, and are not part of what is written."""
        result = cls(**{name: getattr(record, name) for name in record.__struct_fields__})
        for name, fact in facts.items():
            msgspec.structs.force_setattr(result, name, fact)  # type: ignore[type-var, arg-type, unused-ignore]
        return result

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        """Return what the command prints with `--json`. `command` stands in its envelope; secrets in it are masked."""
        raise NotImplementedError

    def to_text(self) -> str:
        """Return the report that the command prints."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints, as a dictionary."""
        loaded: dict[str, Any] = msgspec.json.decode(self.to_json(pretty=False))
        return loaded

    def rows(self, table: str | None = None) -> list[Row]:
        """Return one of the tables as a list of dictionaries, one for each row."""
        name = self.tables[0] if table is None else table
        if name not in self.tables:
            raise UsageError(f"`table` must be one of {', '.join(self.tables)}, but is {name!r}")
        records: Sequence[msgspec.Struct] = getattr(self, name)
        return [_flat(record) for record in records]

    def to_pandas(self, table: str | None = None) -> DataFrame:
        """Return one of the tables as a pandas DataFrame. Raises UsageError without pandas."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise UsageError(
                "`to_pandas` needs pandas, which is not installed",
                hint="pip install pandas, or use .rows() for the same as a list of dictionaries",
            ) from error
        return DataFrame(self.rows(table))

    def _repr_html_(self) -> str:
        from flatout.report.notebook import notebook_html

        return notebook_html(self.to_text(), f"flatout {self.call}")

    def _command(self, command: Sequence[str]) -> list[str]:
        typed: Sequence[str] = self.__dict__.get("_typed", ())
        return list(command) or list(typed) or [f"flatout.api.{self.call}"]


class DiagnosisResult(Result, Diagnosis, frozen=True, kw_only=True, dict=True):
    """A diagnosis: the parts of each rank's step, who waits for whom, and findings with their cost."""

    tables = ("findings", "ranks", "blame", "communication", "data_quality")
    call = "diagnose"

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.json import diagnosis_json

        return diagnosis_json(self, self._command(command), pretty=pretty)

    def to_text(self) -> str:
        from flatout.report.text import diagnosis_text

        return diagnosis_text(self)

    def to_html(self, command: Sequence[str] = ()) -> str:
        """Return the page that `--html` writes."""
        from flatout.diagnose.explain import explanations
        from flatout.report.html import diagnosis_html

        return diagnosis_html(self, self._command(command), explain=explanations())


class ProfileResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A job that was recorded: how it ended, its recording, and the diagnosis of its traces."""

    path: Path
    ended: ExitStatus
    is_first: bool = True  # False: another process, on another node of the job, reads this recording
    recording: Recording | None  # None: it is read elsewhere, or `error` says why it cannot be
    diagnosis: DiagnosisResult | None  # None: no trace, or the job was stopped by a signal
    error: Exception | None = None  # why the recording or its traces could not be read

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        """Return what `flatout profile --json` prints: the diagnosis, or the recording if there is none."""
        words = list(command) or ["flatout.api.profile"]
        if self.diagnosis is not None:
            return self.diagnosis.to_json(words, pretty=pretty)
        if self.recording is None:
            raise self.error or UsageError("there is no recording: another process reports it")
        return _recording_json(self.recording, self.error, words, pretty=pretty)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints, as a dictionary."""
        loaded: dict[str, Any] = msgspec.json.decode(self.to_json(pretty=False))
        return loaded

    def to_text(self) -> str:
        """Return the report of the diagnosis, or what was recorded if there is none."""
        if self.diagnosis is not None:
            return self.diagnosis.to_text()
        return "\n".join(self.recorded_lines())

    def recorded_lines(self) -> list[str]:
        """Return what was recorded, in lines: ranks and steps, rates and memory, and problems."""
        from flatout.report.paths import relative_path
        from flatout.report.recording_text import recording_lines

        if self.recording is None:
            return [f"the recording is in {relative_path(self.path)}"]
        return recording_lines(self.recording, relative_path(self.path))

    def to_pandas(self, table: str | None = None) -> DataFrame:
        """Return a table of the diagnosis as a pandas DataFrame. Raises UsageError if there is no diagnosis."""
        if self.diagnosis is None:
            raise UsageError("the recording has no diagnosis", hint=f"see what was recorded in {self.path}")
        return self.diagnosis.to_pandas(table)

    def _repr_html_(self) -> str:
        from flatout.report.notebook import notebook_html

        return notebook_html(self.to_text(), "flatout profile")


class TuningResult(Result, TuneResult, frozen=True, kw_only=True, dict=True):
    """A tuning: the changes that were accepted, all that were tried, and the noise that they were judged against."""

    tables = ("tried", "bounds")
    call = "tune"

    @property
    def folder(self) -> Path:
        """Return the folder with the trials, `tuned.toml` and the report."""
        folder: Path = self.__dict__.get("_folder", Path())
        return folder

    @property
    def is_better(self) -> bool:
        """Return whether a change was accepted."""
        from flatout.tune.result import is_better

        return is_better(self)

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.tuning_json import tuning_json

        return tuning_json(self, self._command(command))

    def to_text(self) -> str:
        from flatout.report.tuning_text import tuning_text

        return tuning_text(self, self.folder)

    def to_html(self, command: Sequence[str] = ()) -> str:
        """Return the page that is written as `report.html`."""
        from flatout.report.tuning_html import tuning_html

        return tuning_html(self, self._command(command), self.folder)


class ComparisonResult(Result, Comparison, frozen=True, kw_only=True, dict=True):
    """Two commands compared: the verdict, where the difference is, and what differs between their environments."""

    tables = ("parts", "calls", "environment")
    call = "compare"

    @property
    def folder(self) -> Path:
        """Return the folder with the trials and `comparison.json`."""
        folder: Path = self.__dict__.get("_folder", Path())
        return folder

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.comparison_json import comparison_json

        return comparison_json(self, self._command(command))

    def to_text(self) -> str:
        from flatout.report.comparison_text import comparison_text
        from flatout.secrets import masked_command

        return comparison_text(self, self.folder, masked_command(self._command(())))


class CompressionResult(Result, Compression, frozen=True, kw_only=True, dict=True):
    """A compression: the untouched model, its variants with their loss and speed, and which are recommended."""

    tables = ("variants", "unoffered")
    call = "compress"

    @property
    def folder(self) -> Path:
        """Return the folder with the variants, `compress.json` and the report."""
        folder: Path = self.__dict__.get("_folder", Path())
        return folder

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.compression_json import compression_json

        return compression_json(self, self._command(command))

    def to_text(self) -> str:
        from flatout.report.compression_text import compression_text
        from flatout.report.terminal import TextStyle

        return compression_text(self, self.folder, style=TextStyle())

    def to_html(self, command: Sequence[str] = ()) -> str:
        """Return the page that is written as `report.html`."""
        from flatout.report.compression_html import compression_html

        return compression_html(self, self._command(command), self.folder)


class DiffResult(Result, DiagnosisDiff, frozen=True, kw_only=True, dict=True):
    """The change from one diagnosis to another, one run each: parts, findings, and what differs in the environment."""

    tables = ("parts", "findings", "recorded_parts", "environment")
    call = "diff"

    @property
    def diagnoses(self) -> tuple[Diagnosis, Diagnosis]:
        """Return the two diagnoses that were compared."""
        both: tuple[Diagnosis, Diagnosis] = self.__dict__["_diagnoses"]
        return both

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.diff import diff_json

        return diff_json(self, self._command(command), pretty=pretty)

    def to_text(self) -> str:
        from flatout.report.diff_text import diff_text

        return diff_text(self, *self.diagnoses)


class LogDiffResult(Result, LogChange, frozen=True, kw_only=True, dict=True):
    """The change of step time and rates from the log of one training to that of another, one run each."""

    tables = ("sides",)
    call = "diff"

    @property
    def sides(self) -> tuple[LogSide, LogSide]:
        """Return both logs."""
        return self.a, self.b

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.json import enveloped_json

        return enveloped_json("flatout/log-diff", 1, self._command(command), self, pretty=pretty)

    def to_text(self) -> str:
        from flatout.report.log_change_text import log_change_text
        from flatout.report.terminal import TextStyle

        return log_change_text(self, style=TextStyle())


class PlanResult(Result, Plan, frozen=True, kw_only=True, dict=True):
    """The valid parallel layouts of a training, ranked by predicted step time."""

    tables = ("layouts", "excluded")
    call = "plan"

    @property
    def context(self) -> SearchContext:
        """Return what the search knew: the model, the cluster, the software and the corrections by measurements."""
        context: SearchContext = self.__dict__["_context"]
        return context

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.json import enveloped_json

        return enveloped_json("flatout/plan", 1, self._command(command), self, pretty=pretty)

    def to_text(self) -> str:
        from flatout.report.plan_text import plan_text
        from flatout.report.terminal import TextStyle

        return plan_text(self, style=TextStyle(), next_command="")

    def to_html(self, command: Sequence[str] = ()) -> str:
        """Return the page that `--html` writes."""
        from flatout.plan.details import details
        from flatout.report.plan_html import plan_html

        return plan_html(self, details(self.context, self), self._command(command), next_command=())


class ReplayResult(Result, ReplayReport, frozen=True, kw_only=True, dict=True):
    """A job history under one or several scheduling policies."""

    tables = ("policies", "differences")
    call = "replay"

    def to_json(self, command: Sequence[str] = (), *, pretty: bool = True) -> bytes:
        from flatout.report.json import enveloped_json

        return enveloped_json("flatout/replay", 1, self._command(command), self, pretty=pretty)

    def to_text(self) -> str:
        from flatout.report.replay_text import replay_text
        from flatout.report.terminal import TextStyle

        return replay_text(self, style=TextStyle(), next_command="")

    def to_html(self, command: Sequence[str] = ()) -> str:
        """Return the page that `--html` writes."""
        from flatout.report.replay_html import replay_html

        return replay_html(self, self._command(command), next_command="")


def _flat(record: msgspec.Struct) -> Row:
    """Return a record as one row: the keys of dictionaries and records in it become columns, such as `parts_s.wait`."""
    row: Row = {}
    _flatten("", msgspec.to_builtins(record, enc_hook=_plain), row)
    return row


def _flatten(prefix: str, values: Mapping[str, Any], row: Row) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and name not in _KEPT_TOGETHER:
            _flatten(f"{prefix}{name}.", value, row)
        else:
            row[prefix + name] = value


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no plain form")


def _recording_json(recording: Recording, error: Exception | None, command: Sequence[str], *, pretty: bool) -> bytes:
    from flatout.recorded_job_pipeline import recorded_time_of
    from flatout.records.events import Quality
    from flatout.report.recording_json import recording_json

    if error is not None:
        problem = f"its traces could not be diagnosed: {error}"
        quality = Quality(problem=problem, effect="there is no diagnosis")
        recording = msgspec.structs.replace(recording, problems=(*recording.problems, quality))
    return recording_json(recording, command, recorded=recorded_time_of(recording), pretty=pretty)
