"""Start the server as a process in its own group, wait until it is healthy, and end it with all its children.

In: the server's command, the engine's table, a folder for its output. Out: a `Running` server (`trial.py`). Each start
gets a free port of this machine. Only this module starts servers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import InputError
from flatout.inside.protocol import Variable
from flatout.launch.detached import Detached, start_detached
from flatout.probe.nvml import Gpus
from flatout.records.serving import ServerChange
from flatout.records.trial import Covariates
from flatout.secrets import Masker, mask_file
from flatout.serving.client import TransportError
from flatout.serving.engine import Engine
from flatout.serving.exposition import Readings
from flatout.serving.host import HostMeter
from flatout.serving.load import Load
from flatout.serving.model_repository import with_model_config
from flatout.serving.openai_client import OpenAiClient
from flatout.serving.trial import ServerError
from flatout.serving.window import ServerUse
from flatout.serving.words import PORT, ServerCommand, changed, with_option

_POLL_S = 0.2
_LAST_LINES = 3


class ProcessBackend:
    """Starts the server's command."""

    def __init__(
        self, command: ServerCommand, engine: Engine, load: Load, folder: Path, *, mark: str, start_limit_s: float
    ) -> None:
        self._command, self._engine, self._load = command, engine, load
        self._folder = folder
        self._mark = mark
        self._start_limit_s = start_limit_s
        self._gpus = Gpus()

    @property
    def num_gpus(self) -> int:
        return len(self._gpus.facts())

    async def start(self, arm: str, changes: Sequence[ServerChange], index: int) -> RunningProcess:
        """Start the server with the changes. Raise ServerError if it is not healthy in time."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        command, port = with_port(self._changed(changes, index), self._engine)
        environment = {**os.environ, **command.environment, Variable.TUNING: self._mark}
        output = self._folder / f"trial-{index}.log"
        process = start_detached(command.words, environment, output=output)
        client = OpenAiClient(
            f"http://127.0.0.1:{port}",
            model=self._load.model,
            endpoint=self._load.endpoint,
            body=self._load.body,
        )
        running = RunningProcess(
            process,
            client,
            self._engine,
            port=port,
            meter=HostMeter(process, self._gpus, self._folder),
            masker=Masker(environment, command.words),
        )
        try:
            await self._wait(running, began_s + self._start_limit_s)
            await client.find_model()
        except TransportError as error:
            await running.stop()
            raise ServerError("no_answer", str(error)) from None
        except BaseException:
            await running.stop()
            raise
        running.start_s = clock() - began_s
        return running

    def _changed(self, changes: Sequence[ServerChange], index: int) -> ServerCommand:
        command = changed(self._command, changes)
        lines = [line for change in changes for line in change.model_config]
        if not lines:
            return command
        folder = self._folder / f"repository-{index}"
        return with_model_config(command, self._engine, self._load.model, lines, folder)

    async def _wait(self, running: RunningProcess, until_s: float) -> None:
        """Wait until the server is healthy."""
        clock = asyncio.get_running_loop().time
        while not await running.client.is_healthy(self._engine.health):
            running.check(is_starting=True)
            if clock() > until_s:
                raise ServerError(
                    "not_started", f"the server was not healthy within {self._start_limit_s:g} s{running.last_words()}"
                )
            await asyncio.sleep(_POLL_S)
        running.check(is_starting=True)


class RunningProcess:
    """A server that runs as a process of this machine."""

    start_s = 0.0

    def __init__(
        self, process: Detached, client: OpenAiClient, engine: Engine, *, port: int, meter: HostMeter, masker: Masker
    ) -> None:
        self.client = self.transport = client
        self._process, self._engine, self._meter, self._masker = process, engine, meter, masker
        self._metrics_url = f"http://127.0.0.1:{engine.metrics_port or port}{engine.metrics_path or ''}"

    async def metrics(self) -> Readings | None:
        if self._engine.metrics_path is None:
            return None
        return await self.client.metrics(self._metrics_url, self._engine.metrics.names)

    def begin_host_use(self) -> None:
        self._meter.begin()

    def look(self) -> None:
        self._meter.look()

    def host_use(self) -> ServerUse:
        return self._meter.use()

    def covariates(self) -> Covariates:
        return self._meter.covariates()

    def check(self, *, is_starting: bool = False) -> None:
        code = self._process.code()
        if code is None:
            return
        how = f"with code {code}" if code >= 0 else f"by signal {-code}"
        raise ServerError("not_started" if is_starting else "ended", f"the server ended {how}{self.last_words()}")

    def last_words(self) -> str:
        """Return what the server wrote last, as the end of a sentence."""
        lines = self._process.last_lines(_LAST_LINES)
        return f": {self._masker.text(' / '.join(lines))}" if lines else ", and wrote nothing"

    async def stop(self) -> None:
        await self.client.close()
        await asyncio.to_thread(self._process.end)
        mask_file(self._process.output, self._masker)


def with_port(command: ServerCommand, engine: Engine) -> tuple[ServerCommand, int]:
    """Return the command with a free port, and the port; the table's port if the command cannot be given one."""
    port = free_port()
    if any(PORT in word for word in command.words):
        words = tuple(word.replace(PORT, str(port)) for word in command.words)
    elif engine.port_option is not None:
        words = with_option(command.words, engine.port_option, str(port))
    else:
        words, port = command.words, engine.port
        _check_unused(port)
    return ServerCommand(words=words, environment=command.environment), port


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _check_unused(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(
                f"port {port} of this machine is already in use, and the server would be mistaken for another",
                hint=f"stop that server, or write {PORT} where the command has its port",
            )
