"""What the workers of pytest-xdist report to the process that collects results: less, to save a millisecond a test.

A passing test causes six messages, each of which Python serializes and parses. This module drops what nobody is
shown: keywords, the start of a test, and its setup and teardown if they were quick and passed. With `-v`, every test
is reported.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_QUICK_S = 0.005  # what takes less is not among the durations that pytest shows


def pytest_configure(config: pytest.Config) -> None:
    worker = next((plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "sendevent")), None)
    if worker is None or config.get_verbosity() > 0:
        return
    send = worker.sendevent

    def send_what_is_shown(name: str, **content: Any) -> None:
        if name != "logstart" and not (name == "testreport" and _is_of_no_interest(content["data"])):
            send(name, **content)

    worker.sendevent = send_what_is_shown


def _is_of_no_interest(report: dict[str, Any]) -> bool:
    is_around = report["when"] in ("setup", "teardown")
    is_quiet = report["outcome"] == "passed" and not report["sections"]
    return is_around and is_quiet and report["duration"] < _QUICK_S


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_report_to_serializable(
    report: pytest.CollectReport | pytest.TestReport,
) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    data = yield
    if data is not None and report.passed:
        data["keywords"] = {}
    return data
