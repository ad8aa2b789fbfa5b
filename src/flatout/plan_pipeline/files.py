"""Files that `flatout plan` writes in addition to its answer: one HTML page, and settings for other tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flatout.catalog.targets import target_named
from flatout.emit.plan_targets import PLAN_TARGETS, settings_for
from flatout.emit.write import write
from flatout.errors import UsageError
from flatout.plan.details import details
from flatout.plan.search import plan as search
from flatout.plan.search_context import SearchContext
from flatout.records.plan import Plan, PlannedLayout
from flatout.records.plan_details import PlannedJob
from flatout.report.files import check_new, write_new
from flatout.report.plan_html import plan_html
from flatout.report.plan_text import layout_text
from flatout.units import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFiles:
    """The files to write, all checked beforehand."""

    html: Path | None
    targets: tuple[str, ...]
    out: Path
    force: bool

    def write(
        self,
        plan: Plan,
        context: SearchContext,
        *,
        command: Sequence[str],
        next_command: Sequence[str],
        fixed: tuple[str, ...] = (),
        note: Callable[[str], object],
    ) -> None:
        """Write the files and report each with `note`. `fixed`: the layout parameters that the user fixed.

        Raises OutputError if a file exists and `force` is not set, and InputError if a target can run no layout.
        """
        if self.html is not None:
            page = plan_html(plan, details(context, plan), command, next_command=next_command)
            write_new(self.html, page, force=self.force)
            note(f"page: {self.html}")
        for target in self.targets:
            fastest = _fastest(plan, context, target, fixed)
            if fastest.layout != plan.layouts[0].layout:
                note(
                    f"{target}: {layout_text(fastest.layout)} at {seconds(fastest.step_time_s)} per step, the fastest "
                    f"layout that {target_named(target).title} can run"
                )
            for emitted in settings_for(target, _job(fastest, context)):
                note(f"{target}: {write(emitted, self.out, force=self.force)}")
                for remark in emitted.notes:
                    note(f"note: {target}: {remark}")


def planned_files(html: Path | None, emit: Sequence[str], out: Path, *, force: bool) -> PlanFiles:
    """Check before the search that the files can be written after it. `emit` has targets; `a,b` names two."""
    if html is not None:
        check_new(html, force=force)
    targets = [target for text in emit for target in text.split(",") if target]
    for target in targets:
        if target not in PLAN_TARGETS:
            raise UsageError(f"--emit must be one of {', '.join(PLAN_TARGETS)}, but is `{target}`")
    return PlanFiles(html=html, targets=tuple(dict.fromkeys(targets)), out=out, force=force)


def _fastest(plan: Plan, context: SearchContext, target: str, fixed: tuple[str, ...]) -> PlannedLayout:
    """Return the fastest layout that the target can run: the plan's own, or that of a search for this target alone."""
    if plan.target == target:
        return plan.layouts[0]
    return search(replace(context, target=target), num_layouts=1, fixed=fixed).layouts[0]


def _job(planned: PlannedLayout, context: SearchContext) -> PlannedJob:
    spec = context.spec
    return PlannedJob(
        workload=spec.workload,
        cluster=spec.cluster,
        layout=planned.layout,
        global_batch=spec.global_batch,
        seq=spec.seq,
        precision=context.precision,
        training=spec.training,
        step_time_s=planned.step_time_s,
        step_time_interval_s=planned.step_time_interval_s,
        memory_bytes=planned.memory_bytes,
        out_of_memory_probability=planned.out_of_memory_probability,
    )
