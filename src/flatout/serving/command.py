"""Run `flatout tune --serve` from its options to its result: read the load, tune the server, write the results.

In: the server's command, a load, limits and options. Out: a `ServingTuning`, and files in a folder. It composes the
modules of this room and holds no rule.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.emit.serving import EMITTED, emit_serving
from flatout.emit.write import write as write_emitted
from flatout.errors import InputError
from flatout.launch.guard import guarded
from flatout.probe.limits import allowed_cores
from flatout.records.change import Safety
from flatout.records.serving import ServingObjective, ServingTuning, UnofferedKnob
from flatout.report.serving_html import serving_html
from flatout.report.serving_json import serving_json
from flatout.serving.candidates import ServerMachine, without_unlisted
from flatout.serving.engine import Engine, engine_of
from flatout.serving.first_start import first_start
from flatout.serving.journal import NAME as JOURNAL
from flatout.serving.journal import Begun, ServingJournal, identity_of
from flatout.serving.judge import cost
from flatout.serving.load import TracedLoad, read_load
from flatout.serving.loop import Loop, Say, ServingOptions
from flatout.serving.offered import help_text
from flatout.serving.openai_client import check_httpx
from flatout.serving.processes import ProcessBackend
from flatout.serving.result import tuning_result
from flatout.serving.slo import parse_slo
from flatout.serving.trial import ServerBackend, ServerTrialSetup
from flatout.serving.words import ServerCommand, has_option, parse_command
from flatout.tune.result_folder import FolderNames, SearchLimits, open_folder, write_results
from flatout.tune.signals import signals_raised

JSON, HTML, LOGS = "serving.json", "report.html", "logs"
_NAMES = FolderNames(kind="tuning", journal=JOURNAL, results=(JSON, HTML, *EMITTED), folders=(LOGS,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """A server to tune, how, and what limits it."""

    server: str
    load: Path
    slo: str
    limits: SearchLimits
    objective: ServingObjective = "goodput"
    allowed: Safety = "exact"
    engine: str | None = None
    start_limit_s: float = 600.0

    def tune(self, say: Say) -> ServingTuning:
        """Tune the server. Ctrl-C ends it with what was found so far; the server's processes never outlive it."""
        command = parse_command(self.server)
        slo = parse_slo(self.slo)
        folder = self.limits.folder
        table = engine_of(command.words, self.engine)
        traced = read_load(self.load)
        check_httpx()
        identity = identity_of(command, slo, traced, table, self.objective, self.allowed, self.start_limit_s)
        journal = ServingJournal(folder, identity)
        open_folder(self.limits, _NAMES, resumes=journal.read() is not None)
        say(f"asking the {table.name} server's own help which options it has")
        engine, unoffered = without_unlisted(table, help_text(table, command))
        mark = secrets.token_hex(8)
        backend = ProcessBackend(
            command, engine, traced.load, folder / LOGS, mark=mark, start_limit_s=self.start_limit_s
        )
        plan = ServerTrialSetup(engine=engine, traced=traced, limits=slo, rates_per_s=traced.load.rates or ())
        with signals_raised(), guarded(mark):
            return asyncio.run(self._tune(backend, plan, command, unoffered, journal, say, num_gpus=backend.num_gpus))

    async def _tune(
        self,
        backend: ServerBackend,
        plan: ServerTrialSetup,
        command: ServerCommand,
        unoffered: tuple[UnofferedKnob, ...],
        journal: ServingJournal,
        say: Say,
        *,
        num_gpus: int,
    ) -> ServingTuning:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        recorded = journal.read()
        if recorded is None:
            say("starting the untouched server")
            plan, trial, notes = await first_start(backend, plan, say)
        else:
            begun = recorded.begun
            num_trials = 1 + len(recorded.trials)
            say(f"resuming: {num_trials} trials of {self.limits.folder / JOURNAL} are used and not run again")
            plan = msgspec.structs.replace(plan, rates_per_s=begun.rates_per_s, words_per_token=begun.words_per_token)
            trial, notes = begun.first, begun.notes
        journal.begin(
            Begun(
                identity=journal.identity,
                tool_version=__version__,
                rates_per_s=plan.rates_per_s,
                words_per_token=plan.words_per_token,
                notes=notes,
                first=trial,
            )
        )
        for known in recorded.trials if recorded else ():
            journal.keep(known)
        if cost(trial, self.objective) is None:
            raise InputError(
                f"`--objective {self.objective}` needs the power of the GPUs, which is unknown on this machine",
                hint="use --objective goodput or tokens/s",
            )
        machine = ServerMachine(num_gpus=num_gpus, cores=allowed_cores())
        spent_s = trial.took_s if recorded else clock() - began_s
        options = self._options(self.limits.budget_s - spent_s)
        loop = Loop(
            backend,
            plan,
            options,
            command,
            machine,
            say,
            before=[trial],
            recorded=recorded.trials if recorded else (),
            keep=journal.keep,
        )
        found = await loop.run()
        return tuning_result(
            found,
            plan,
            self._options(self.limits.budget_s),
            command,
            machine=machine,
            unoffered=unoffered,
            notes=(*notes, *_notes(plan.engine, plan.traced, command)),
            took_s=clock() - began_s,
        )

    def _options(self, budget_s: float) -> ServingOptions:
        return ServingOptions(
            objective=self.objective, allowed=self.allowed, budget_s=budget_s, max_trials=self.limits.max_trials
        )

    def write(self, tuning: ServingTuning, typed: Sequence[str]) -> list[str]:
        """Write the results, and the files for other tools if a change was adopted; return the lines to print."""
        folder = self.limits.folder
        emitted = emit_serving(tuning) if tuning.adopted else []
        write_results(folder, {JSON: serving_json(tuning, typed), HTML: serving_html(tuning, typed, folder)})
        lines = [f"wrote {folder / HTML}"]
        if tuning.ended_by in ("budget", "trials", "interrupted"):
            lines.append(f"the same command with --out {folder}, and a larger --budget or --trials, resumes it")
        for each in emitted:
            lines.append(f"wrote {write_emitted(each, folder, force=True)}")
            lines += [f"{each.path}: {note}" for note in each.notes]
        return lines


def _notes(engine: Engine, traced: TracedLoad, command: ServerCommand) -> list[str]:
    need = engine.metrics_need
    if engine.metrics_path is None:
        return [f"{engine.name} has no metrics: queue and batch are estimated from the answers' times"]
    if need is not None and not has_option(command.words, need):
        return [f"without {need} the server has no metrics: queue and batch are estimated from the answers' times"]
    return []
