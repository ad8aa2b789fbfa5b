"""Tunings of the simulated server in virtual time, for tests and `benchmarks/serving_causes.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.serving.fake_engine import FakeEngine, RefusedError, parser
from tests.serving.virtual_time import run_virtual

from flatout.records.serving import Request, ServerChange, ServerTrial
from flatout.records.trial import Covariates
from flatout.serving.candidates import ServerMachine, without_unlisted
from flatout.serving.client import Ending, OnPiece, TransportError
from flatout.serving.engine import Engine, read_engine
from flatout.serving.exposition import Readings, read_metrics
from flatout.serving.load import Load, TracedLoad
from flatout.serving.loop import Found, Loop, ServingOptions
from flatout.serving.slo import parse_slo
from flatout.serving.trial import ServerTrialSetup
from flatout.serving.window import ServerUse
from flatout.serving.words import ServerCommand, changed

TABLE = Path(__file__).with_name("fake.toml")
SLO = "p99 ttft<500ms, p99 itl<60ms"


class Running:
    """The simulated engine, in this process and in the time of its loop."""

    start_s = 1.0

    def __init__(self, engine: FakeEngine, table: Engine) -> None:
        self.transport = self
        self._engine, self._table = engine, table
        self._begun = (0.0, 0.0)
        engine.run()

    async def answer(self, request: Request, on_piece: OnPiece) -> Ending:
        try:
            tokens, prompt = await self._engine.generate(request.prompt, request.max_tokens, on_piece)
        except RefusedError:
            raise TransportError("the server refused the request") from None
        return Ending(num_tokens=tokens, num_prompt_tokens=prompt)

    async def metrics(self) -> Readings:
        return read_metrics(self._engine.metrics(), self._table.metrics.names)

    def begin_host_use(self) -> None:
        self._begun = self._engine.now_s(), self._engine.counters.host_busy_s

    def look(self) -> None:
        pass

    def host_use(self) -> ServerUse:
        began_s, busy_s = self._begun
        took_s = self._engine.now_s() - began_s
        cores = (self._engine.counters.host_busy_s - busy_s) / took_s if took_s else 0.0
        # the busiest thread: that of a host with several has its share
        return ServerUse(
            busiest_thread_cores=min(cores / self._engine.options.api_server_count, 1.0), gpu_busy_share=0.9
        )

    def covariates(self) -> Covariates:
        return Covariates()

    def check(self) -> None:
        pass

    async def stop(self) -> None:
        await self._engine.stop()


class Backend:
    """Starts the simulated engine with a command's options."""

    def __init__(self, command: ServerCommand, table: Engine) -> None:
        self._command, self._table = command, table
        self.commands: list[tuple[str, ...]] = []

    async def start(self, arm: str, changes: Sequence[ServerChange], index: int) -> Running:
        words = changed(self._command, changes).words
        self.commands.append(words)
        return Running(FakeEngine(words[1:], start=index), self._table)


def table() -> Engine:
    engine, _ = without_unlisted(read_engine(TABLE), parser().format_help())
    return engine


def tuned(
    words: Sequence[str],
    *,
    seed: int,
    rates: tuple[float, ...],
    options: ServingOptions | None = None,
    slo: str = SLO,
    engine: Engine | None = None,
    recorded: Sequence[ServerTrial] = (),
    keep: Callable[[ServerTrial], None] = lambda trial: None,
    **load: object,
) -> Found:
    """Tune the simulated server, started with these options, in virtual time."""
    engine = engine or table()
    command = ServerCommand(words=("fake_server.py", *words, "--seed", str(seed)))
    described = Load(rates=rates, seed=seed, **load)  # type: ignore[arg-type]
    plan = ServerTrialSetup(
        engine=engine,
        traced=TracedLoad(load=described, path="load.toml"),
        limits=parse_slo(slo),
        rates_per_s=rates,
    )
    options = options or ServingOptions(budget_s=1e9, max_trials=30)

    async def main() -> Found:
        machine = ServerMachine(num_gpus=1, cores=8.0)
        loop = Loop(
            Backend(command, engine), plan, options, command, machine, lambda _: None, recorded=recorded, keep=keep
        )
        return await loop.run()

    return run_virtual(main())
