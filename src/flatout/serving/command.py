"""Run `flatout tune --serve` from its options to its result: read the load, tune the server, write the results.

In: the server's command, a load, limits and options. Out: a `ServingTuning`, and files in a folder. It composes the
modules of this room and holds no rule.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.emit.serving import emit_serving
from flatout.emit.write import write as write_emitted
from flatout.errors import InputError, OutputError
from flatout.launch.guard import guarded
from flatout.probe.limits import allowed_cores
from flatout.records.serving import ServingTuning, UnofferedKnob
from flatout.report.serving_html import serving_html
from flatout.report.serving_json import serving_json
from flatout.secrets import write_private
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
from flatout.tune.signals import signals_raised

JSON, HTML, LOGS = "serving.json", "report.html", "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """A server to tune, and the folder for its logs and results."""

    server: str
    load: Path
    slo: str
    folder: Path
    options: ServingOptions
    engine: str | None = None
    start_limit_s: float = 600.0
    force: bool = False

    def tune(self, say: Say) -> ServingTuning:
        """Tune the server. Ctrl-C ends it with what was found so far; the server's processes never outlive it."""
        command = parse_command(self.server)
        limits = parse_slo(self.slo)
        table = engine_of(command.words, self.engine)
        traced = read_load(self.load)
        check_httpx()
        identity = identity_of(
            command, limits, traced, table, self.options.objective, self.options.allowed, self.start_limit_s
        )
        self._claim(identity)
        say(f"asking the {table.name} server's own help which options it has")
        engine, unoffered = without_unlisted(table, help_text(table, command))
        mark = secrets.token_hex(8)
        backend = ProcessBackend(
            command, engine, traced.load, self.folder / LOGS, mark=mark, start_limit_s=self.start_limit_s
        )
        plan = ServerTrialSetup(engine=engine, traced=traced, limits=limits, rates_per_s=traced.load.rates or ())
        with signals_raised(), guarded(mark):
            journal = ServingJournal(self.folder, identity)
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
            say(f"resuming: {1 + len(recorded.trials)} trials of {self.folder / JOURNAL} are used and not run again")
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
        if cost(trial, self.options.objective) is None:
            raise InputError(
                f"`--objective {self.options.objective}` needs the power of the GPUs, which is unknown on this machine",
                hint="use --objective goodput or tokens/s",
            )
        machine = ServerMachine(num_gpus=num_gpus, cores=allowed_cores())
        spent_s = trial.took_s if recorded else clock() - began_s
        options = msgspec.structs.replace(self.options, budget_s=self.options.budget_s - spent_s)
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
            self.options,
            command,
            machine=machine,
            unoffered=unoffered,
            notes=(*notes, *_notes(plan.engine, plan.traced, command)),
            took_s=clock() - began_s,
        )

    def write(self, tuning: ServingTuning, typed: Sequence[str]) -> list[str]:
        """Write the results, and the files for other tools if a change was adopted; return the lines to print."""
        emitted = emit_serving(tuning) if tuning.adopted else []
        try:
            write_private(self.folder / JSON, serving_json(tuning, typed))
            write_private(self.folder / HTML, serving_html(tuning, typed, self.folder).encode())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"{self.folder} cannot be written to: {reason}", hint="pass another --out") from error
        lines = [f"wrote {self.folder / HTML}"]
        if tuning.ended_by in ("budget", "trials", "interrupted"):
            lines.append(f"the same command with --out {self.folder}, and a larger --budget or --trials, resumes it")
        for each in emitted:
            lines.append(f"wrote {write_emitted(each, self.folder, force=True)}")
            lines += [f"{each.path}: {note}" for note in each.notes]
        return lines

    def _claim(self, identity: str) -> None:
        """Create the folder. Raise OutputError if it holds anything but a former result that `force` replaces.

        A tuning of the same server under the same load is kept, so that it is resumed.
        """
        folder = self.folder
        if not self.force and ServingJournal(folder, identity).read() is not None:
            return
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                is_ours = (folder / LOGS).is_dir()
                has_result = (folder / JSON).exists()
                if not is_ours or (has_result and not self.force):
                    hint = "pass another --out" if not is_ours else "pass another --out, or --force to replace it"
                    raise OutputError(f"{folder} already has other files", hint=hint)
                shutil.rmtree(folder / LOGS)
                (folder / JOURNAL).unlink(missing_ok=True)
            (folder / LOGS).mkdir(parents=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"{folder} cannot be written to: {reason}", hint="pass another --out") from error


def _notes(engine: Engine, traced: TracedLoad, command: ServerCommand) -> list[str]:
    need = engine.metrics_need
    if engine.metrics_path is None:
        return [f"{engine.name} has no metrics: queue and batch are estimated from the answers' times"]
    if need is not None and not has_option(command.words, need):
        return [f"without {need} the server has no metrics: queue and batch are estimated from the answers' times"]
    return []
