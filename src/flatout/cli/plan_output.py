"""What `flatout plan` writes beside its answer: one HTML page, and settings for other tools."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.cli.again import again

if TYPE_CHECKING:
    from flatout.plan.search import Setting
    from flatout.records.plan import Plan

_WRITES = ("--html", "--emit", "--out", "--calibrate")  # with a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Files that are to be written, each looked at already."""

    html: Path | None
    targets: tuple[str, ...]
    out: Path
    force: bool

    def write(self, plan: Plan, setting: Setting) -> None:
        """OutputError: a file is there, and `force` is not given."""
        if self.html is not None:
            self._write_page(self.html, plan, setting)
        for name in self.targets:
            self._write_settings(name, plan, setting)

    def _write_page(self, path: Path, plan: Plan, setting: Setting) -> None:
        from flatout.plan.details import details
        from flatout.report.files import write_new
        from flatout.report.plan_html import plan_html

        command = ["flatout", *sys.argv[1:]]
        page = plan_html(plan, details(setting, plan), command, next_command=calibrated(sys.argv[1:]))
        write_new(path, page, force=self.force)
        print(f"page: {path}", file=sys.stderr)

    def _write_settings(self, name: str, plan: Plan, setting: Setting) -> None:
        from flatout.emit.plan_targets import PLAN_TARGETS
        from flatout.emit.write import write
        from flatout.records.plan_details import PlannedJob

        best, job = plan.layouts[0], setting.job
        planned = PlannedJob(
            workload=job.workload,
            cluster=job.cluster,
            layout=best.layout,
            global_batch=job.global_batch,
            seq=job.seq,
            precision=setting.precision,
            step_time_s=best.step_time_s,
            step_time_interval_s=best.step_time_interval_s,
            memory_bytes=best.memory_bytes,
            out_of_memory_probability=best.out_of_memory_probability,
        )
        for emitted in PLAN_TARGETS[name](planned):
            print(f"{name}: {write(emitted, self.out, force=self.force)}", file=sys.stderr)
            for note in emitted.notes:
                print(f"note: {name}: {note}", file=sys.stderr)


def wanted_output(html: Path | None, emit: Sequence[str] | None, out: Path, *, force: bool) -> Output:
    """Refuse before a search what could not be written after it."""
    from flatout.errors import UsageError
    from flatout.report.files import check_new

    if html is not None:
        check_new(html, force=force)
    names = [name for text in emit or () for name in text.split(",") if name]
    if names:
        from flatout.emit.plan_targets import PLAN_TARGETS

        for name in names:
            if name not in PLAN_TARGETS:
                raise UsageError(f"--emit must be one of {', '.join(PLAN_TARGETS)}, but is `{name}`")
    return Output(html=html, targets=tuple(dict.fromkeys(names)), out=out, force=force)


def calibrated(arguments: Sequence[str]) -> list[str]:
    """The same plan, corrected: without what writes files, and with runs of one's own."""
    return [*again(arguments, writes=_WRITES), "--calibrate", "RUNS.csv"]
