"""Say in one line what a result says: the object that a command printed with `--json` -> a sentence.

A result of another version, or a damaged one, has the headline of what can be read of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flatout.report.phrases import counted
from flatout.units import percent, seconds

_LONGEST = 300
_Record = Mapping[str, Any]


def headline(record: _Record) -> str:
    """Return the line; "" if nothing of the result is known."""
    schema = str(record.get("schema", "")).removeprefix("flatout/")
    try:
        text = _HEADLINES.get(schema, _nothing)(record)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        text = ""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _nothing(record: _Record) -> str:
    return ""


def _diagnosis(record: _Record) -> str:
    findings = record["findings"]
    ranks = counted(len(record["ranks"]), "rank")
    return f"{ranks}: {findings[0]['title']}" if findings else f"{ranks}: no finding"


def _tuning(record: _Record) -> str:
    changes = [str(change["name"]) for change in record["changes"] if change.get("verdict", "better") == "better"]
    text = str(record["verdict"])
    if isinstance(record.get("speedup"), float):
        text += f", {record['speedup']:.2f} times as fast"
    return f"{text}: {', '.join(changes)}" if changes else text


def _comparison(record: _Record) -> str:
    verdict = record["verdict"]
    return str(verdict["verdict"] if isinstance(verdict, dict) else verdict)


def _log_diff(record: _Record) -> str:
    return f"B is {record['speedup']:.2f} times as fast as A, one run each"


def _diff(record: _Record) -> str:
    return f"B is {record['speedup']:.2f} times as fast as A, one run each"


def _ledger(record: _Record) -> str:
    return f"{percent(record['goodput'])} of {record['allocated_device_s'] / 3600:,.1f} GPU-hours productive"


def _plan(record: _Record) -> str:
    best = record["layouts"][0]
    return f"the best of {counted(len(record['layouts']), 'layout')} shown: {seconds(best['step_time_s'])} per step"


def _replay(record: _Record) -> str:
    return ", ".join(f"{each['policy']}: {percent(each['utilization'])} used" for each in record["policies"][:4])


def _ceilings(record: _Record) -> str:
    return counted(len(record["measurements"]), "measurement")


def _doctor(record: _Record) -> str:
    statuses = [check["status"] for check in record["checks"]]
    return f"{statuses.count('fail')} failed, {statuses.count('warn')} warned, of {counted(len(statuses), 'check')}"


def _cost(record: _Record) -> str:
    return f"{record['total']['total']['gpu_hours']:,.1f} GPU-hours of {counted(record['total']['num_jobs'], 'job')}"


def _xla_tuning(record: _Record) -> str:
    better = [tried for tried in record["tried"] if tried["verdict"] == "better"]
    words = [f"{tried['change']['name']} {tried['speedup']:.2f} times as fast" for tried in better]
    return ", ".join(words) or "no change is shown to be better"


def _serving(record: _Record) -> str:
    return str(record["verdict"]) if isinstance(record.get("verdict"), str) else ""


_HEADLINES: Mapping[str, Callable[[_Record], str]] = {
    "diagnosis": _diagnosis,
    "tuning": _tuning,
    "comparison": _comparison,
    "diff": _diff,
    "log-diff": _log_diff,
    "ledger-report": _ledger,
    "plan": _plan,
    "replay": _replay,
    "ceilings": _ceilings,
    "doctor": _doctor,
    "cost": _cost,
    "serving": _serving,
    "xla-tuning": _xla_tuning,
}
