"""Write and read `tuned.toml`: the accepted changes, each with its measurement.

Reading returns the changes of the catalogue by the names of their knobs; the user's own arguments are read as stored. A
file that does not fit the schema, the catalogue's ranges or its forbidden settings raises InputError with one line.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.change.arguments import FAMILY as ARGUMENTS
from flatout.change.catalogue import KNOBS, all_changes
from flatout.change.combine import combine
from flatout.change.setting import setting
from flatout.emit.heading import commented
from flatout.errors import InputError, UsageError
from flatout.input_files import read_toml
from flatout.records.change import SAFETIES, Argument, Change, ChangeSet, JobFacts, Knob, Patch
from flatout.records.expectation import StepExpectation
from flatout.records.prediction import Prediction
from flatout.records.tuning import TIMES, Emitted, TunedChange, Tuning
from flatout.records.verdict import Verdict

SCHEMA = "flatout/tuned"
VERSION = 1
_HINT = "pass a tuned.toml that `flatout tune` wrote"


# Jobs that together have every kind of change in the catalogue.
_HOST = JobFacts(num_ranks=2, ranks_per_host=2, num_hosts=1, cores_allowed=64.0, num_numa_nodes=2, threads_per_rank=1)
_ANY_JOB = tuple(msgspec.structs.replace(_HOST, device=device) for device in ("cuda", "cpu"))


class _StoredVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    verdict: str
    speedup: float | None = None
    mean_speedup: float | None = None
    interval: tuple[float, float] | None = None
    num_pairs: int = 0
    order: str = ""
    objective: str = "step_s"
    step_s: float | None = None  # with all changes; in the table of all of them only


class _StoredPrediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    speedup: float
    interval: tuple[float, float]


class _StoredPatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    parameters: dict[str, bool | int | float | str] = {}


class _StoredChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    knob: str
    family: str
    safety: str
    value: str = ""
    summary: str = ""
    environment: dict[str, str] = {}
    launch: dict[str, tuple[str, ...]] = {}
    patch: _StoredPatch | None = None
    arguments: tuple[tuple[str, ...], ...] = ()
    measured: _StoredVerdict | None = None
    predicted: _StoredPrediction | None = None


class Tuned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of the file. `change_set` returns the changes to start a job with."""

    schema: str
    version: int
    tool_version: str = ""
    command: tuple[str, ...] = ()
    date: str = ""
    num_trials: int | None = None
    machine: dict[str, str] = {}
    versions: dict[str, str] = {}
    measured: _StoredVerdict | None = None
    change: tuple[_StoredChange, ...] = ()

    def change_set(self, facts: JobFacts | None = None) -> ChangeSet:
        """Return the changes merged. Raise InputError with one line for a change that the catalogue does not allow."""
        changes = [_change(stored) for stored in self.change]
        try:
            return combine(changes, facts if facts is not None else _as_tuned(changes))
        except UsageError as error:
            raise InputError(f"the changes cannot be applied: {error}", hint=error.hint) from None

    def expectation(self) -> StepExpectation | None:
        """Return the step time that a job with the changes should have; None if the file does not say it."""
        measured = self.measured
        if measured is None or measured.step_s is None or measured.interval is None or measured.mean_speedup is None:
            return None
        low, high = measured.interval
        is_usable = measured.objective in TIMES and 0 < low <= measured.mean_speedup <= high and measured.step_s > 0
        if not is_usable:
            return None
        without_s = measured.step_s * measured.mean_speedup
        return StepExpectation(
            low_s=without_s / high,
            high_s=without_s / low,
            without_s=without_s,
            num_ranks=_count(self.machine, "num_ranks"),
            num_nodes=_count(self.machine, "num_hosts"),
            device=self.machine.get("device"),
        )


def _count(machine: dict[str, str], name: str) -> int | None:
    text = machine.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def emit(tuning: Tuning) -> Emitted:
    """Return the file. Secrets in the command must already be masked."""
    each = {tuned.change.name: tuned for tuned in tuning.each}
    stored = Tuned(
        schema=SCHEMA,
        version=VERSION,
        tool_version=__version__,
        command=tuning.command,
        date=tuning.date,
        num_trials=tuning.num_trials,
        machine=tuning.machine,
        versions=tuning.versions,
        measured=_verdict(tuning.verdict, step_s=tuning.step_s),
        change=tuple(_stored(change, each.get(change.name)) for change in tuning.changes.changes),
    )
    return Emitted(path="tuned.toml", text=commented(tuning, has_command=True) + _toml(msgspec.to_builtins(stored)))


def read(path: Path) -> Tuned:
    """Read the file. Raise InputError with one line if it is missing or was not written by `emit`."""
    try:
        content = read_toml(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}", hint=_HINT) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}", hint=_HINT) from None
    if content.get("schema") != SCHEMA:
        raise InputError(f'{path} must begin with `schema = "{SCHEMA}"`, but has {content.get("schema")!r}', hint=_HINT)
    if content.get("version") != VERSION:
        raise InputError(f"{path} has version {content.get('version')!r}, but this Flatout reads version {VERSION}")
    try:
        tuned = msgspec.convert(content, Tuned)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from None
    try:
        tuned.change_set()
    except InputError as error:
        raise InputError(f"{path}: {error}", hint=error.hint) from None
    return tuned


def _stored(change: Change, tuned: TunedChange | None) -> _StoredChange:
    verdict, prediction = (tuned.verdict, tuned.prediction) if tuned is not None else (None, None)
    return _StoredChange(
        name=change.name,
        knob=change.knob.name,
        family=change.family,
        safety=change.safety,
        value=change.value,
        summary=change.knob.summary,
        environment=change.environment,
        launch=change.launch,
        patch=_StoredPatch(name=change.patch.name, parameters=change.patch.parameters) if change.patch else None,
        arguments=change.argument.words if change.argument else (),
        measured=_verdict(verdict),
        predicted=_prediction(prediction),
    )


def _prediction(prediction: Prediction | None) -> _StoredPrediction | None:
    if prediction is None:
        return None
    return _StoredPrediction(speedup=prediction.speedup, interval=(prediction.low, prediction.high))


def _verdict(verdict: Verdict | None, *, step_s: float | None = None) -> _StoredVerdict | None:
    if verdict is None:
        return None
    return _StoredVerdict(
        verdict=verdict.verdict,
        speedup=verdict.speedup,
        mean_speedup=verdict.mean_speedup,
        interval=verdict.interval,
        num_pairs=verdict.num_pairs,
        order=verdict.order,
        objective=verdict.objective,
        step_s=step_s,
    )


def _change(stored: _StoredChange) -> Change:
    """Return the change, with its knob in the catalogue. Raise InputError if the catalogue does not allow it."""
    knob = _knob(stored)
    patch = Patch(name=stored.patch.name, parameters=stored.patch.parameters) if stored.patch else None
    change = setting(
        knob,
        stored.value or None,
        environment=stored.environment,
        launch=stored.launch,
        argument=Argument(words=stored.arguments) if stored.arguments else None,
    )
    if change.name != stored.name:
        raise InputError(f"`name` must be `{change.name}` for its knob and value, but is `{stored.name}`")
    return msgspec.structs.replace(change, patch=patch)


def _knob(stored: _StoredChange) -> Knob:
    knob = next((knob for knob in KNOBS if knob.name == stored.knob), None)
    if knob is None and stored.family == ARGUMENTS:
        return _own_knob(stored)
    if knob is None:
        raise InputError(f"there is no knob `{stored.knob}` in this version's catalogue")
    if stored.safety != knob.safety:
        raise InputError(f"`{stored.name}` is {knob.safety}, and not {stored.safety}, in this version's catalogue")
    if foreign := _foreign(stored, knob):
        raise InputError(f"`{stored.name}` may not set {foreign}: the catalogue's change does not")
    return knob


def _foreign(stored: _StoredChange, knob: Knob) -> str | None:
    """Return any variable or launcher argument that the catalogue never sets for this knob: files are not trusted."""
    of_knob = [change for facts in _ANY_JOB for change in all_changes(facts) if change.knob.name == stored.knob]
    variables = {name for change in of_knob for name in change.environment}.union(knob.variables)
    foreign_variables = sorted(stored.environment.keys() - variables)
    if foreign_variables:
        return f"the variable {foreign_variables[0]}"
    if stored.launch and stored.launch not in [change.launch for change in of_knob]:
        return "words of a launcher"
    return None


def _own_knob(stored: _StoredChange) -> Knob:
    safety = next((safety for safety in SAFETIES if safety == stored.safety), None)
    if safety is None:
        raise InputError(f"`safety` of {stored.name} must be one of {', '.join(SAFETIES)}, but is `{stored.safety}`")
    if not stored.arguments or stored.environment or stored.launch or stored.patch:
        raise InputError(f"{stored.name} changes the user's own arguments, and must have `arguments` and nothing else")
    return msgspec.convert(
        {
            "name": stored.knob,
            "family": ARGUMENTS,
            "summary": stored.summary,
            "safety": safety,
            "valid": {"choices": [stored.value]},
            "gates": ["loss", "memory"],
            "doc": "A script argument, as passed with --knob.",
            "source": "--knob",
        },
        Knob,
    )


def _as_tuned(changes: list[Change]) -> JobFacts:
    """Return facts in which the script already sets what the changes require, as it did when they were tuned."""
    required = {name for change in changes for name in change.knob.requires}
    return JobFacts(
        loader_workers=1 if "dataloader-workers" in required else None,
        loader_pins_memory=True if "dataloader-pin-memory" in required else None,
        loader_has_persistent_workers=True if "dataloader-persistent-workers" in required else None,
    )


def _toml(table: dict[str, Any]) -> str:
    """Write plain values first, then one table for each dictionary, then each change as `[[change]]`."""
    plain = {name: value for name, value in table.items() if not isinstance(value, dict) and name != "change"}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items() if value is not None]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{_key(name)}]", *_pairs(value)]
    for change in table.get("change", ()):
        lines += ["", "[[change]]", *_pairs(change)]
    return "\n".join(lines) + "\n"


def _pairs(table: dict[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in table.items() if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(_pairs(value)) + " }" if value else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    # Texts and numbers are written as in JSON; only the delete character must be escaped too.
    return json.dumps(value).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _value(name)
