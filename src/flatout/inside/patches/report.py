"""Report the effects of patches, in lines of `patches-<host>-<pid>.jsonl` in the recording.

The last line for a patch in a process counts. {"schema": "flatout/patches", "version": 1, "patch": "dataloader",
"parameters": {..}, "applied": true, "reason": null, "details": {"loaders": 2}, "notes": [..], "rank": 0, "world_size":
2, "pid": 4711}

`applied`: the patch took effect at least once. `reason`: why it did not. `details` holds counts, and `notes` describes
places where the patch did not fit. Lines are written when a patch first takes effect, whenever a count has doubled, at
the first optimizer step, and at the end. A process that neither trains nor calls a model without gradients (a launcher,
a compiler's helper) writes none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch.distributed
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.identity import find_identity, is_loader_worker
from flatout.inside.log import LOG
from flatout.inside.protocol import File, process_name
from flatout.secrets import masked_text, open_private

SCHEMA, VERSION = "flatout/patches", 1
_MAX_NOTES = 8
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Report:
    def __init__(self, name: str, parameters: Mapping[str, object], reports: Reports) -> None:
        self.name = name
        self.parameters = dict(parameters)
        self.details: dict[str, int | str] = {}
        self.notes: list[str] = []
        self.reason: str | None = "not installed"
        self.is_applied = False
        self.is_on = True  # False: the patch does nothing for now, while the job runs in blocks (`inside.blocks`)
        self.before_writing: Callable[[], object] | None = None  # updates the report before it is written
        self._reports = reports

    def waits(self, reason: str) -> None:
        """Note that the patch is installed; `reason` applies until it takes effect."""
        self.reason = reason

    def did(self, what: str, number: int = 1, *, is_process_wide: bool = False) -> None:
        """Count `number` more of `what` as changed; process-wide changes count even in a process that may not train."""
        before = self.details.get(what, 0)
        total = (before if isinstance(before, int) else 0) + number
        self.details[what] = total
        if not self.is_applied or total.bit_length() != (total - number).bit_length():
            self.is_applied, self.reason = True, None
            self._reports.write(self, is_sure=not is_process_wide)

    def note(self, text: str) -> None:
        """Note a place where the patch did not fit and the script's own behavior is unchanged."""
        if text not in self.notes and len(self.notes) < _MAX_NOTES:
            self.notes.append(text)
        if not self.is_applied:
            self.reason = text

    def failed(self, where: str) -> None:
        """Report an error in Flatout's code: the exception that is being handled."""
        LOG.error(f"patch {self.name}, {where}")
        self.note(f"failed: {where}, see the log")

    def guarded(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @wraps(function)
        def safe(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            try:
                return function(*args, **kwargs)
            except Exception:  # noqa: BLE001 - never the job's
                self.failed(function.__name__.strip("_"))
                return None

        return safe


class Reports:
    """All reports of this process."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.all: list[Report] = []
        self._trains = False
        self._last: dict[str, str] = {}

    def begin(self, folder: Path | None) -> None:
        self.folder = folder
        os.register_at_fork(after_in_child=self._forked)
        is_first = True

        def after_step(*_: object) -> None:  # a hook must not remove itself
            nonlocal is_first
            if is_first:
                is_first = False
                self._trains = True
                self.write_all()

        register_optimizer_step_post_hook(after_step)
        EXIT_HANDLERS.at_exit(self.write_all)

    def infers(self) -> None:
        """Note that the process infers, so that its reports count although it trains nothing."""
        self._trains = True

    def add(self, name: str, parameters: Mapping[str, object]) -> Report:
        report = Report(name, parameters, self)
        self.all.append(report)
        return report

    def write(self, report: Report, *, is_sure: bool = True) -> None:
        self._trains |= is_sure
        if self.folder is None or not self._is_training():
            return
        identity = find_identity()
        line = json.dumps(
            {
                "schema": SCHEMA,
                "version": VERSION,
                "patch": report.name,
                "parameters": report.parameters,
                "applied": report.is_applied,
                "reason": report.reason,
                "details": report.details,
                "notes": report.notes,
                "rank": identity.rank,
                "world_size": identity.world_size,
                "pid": os.getpid(),
            }
        )
        line = masked_text(line)  # reasons and notes quote exceptions
        if self._last.get(report.name) == line:
            return
        self._last[report.name] = line
        try:
            path = self.folder / File.PATCHES.of(process_name(os.uname().nodename, os.getpid()))
            with open_private(path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            LOG.error("the report of the patches")

    def write_all(self) -> None:
        for report in self.all:
            if report.before_writing is not None:
                report.before_writing()
            self.write(report, is_sure=False)

    def _is_training(self) -> bool:
        if is_loader_worker():
            return False
        distributed = torch.distributed
        return self._trains or (distributed.is_available() and distributed.is_initialized())

    def _forked(self) -> None:
        self._trains = False
        self._last.clear()


REPORTS = Reports()
