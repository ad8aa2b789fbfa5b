"""`python -m flatout.watch.exporter.process REQUEST`: serve the metrics of a job to Prometheus.

It runs as a separate process and reads the files that `flatout run` writes, so a scrape never delays the monitoring of
the job. It exits when its standard input closes, which happens when its parent ends for any reason. If it ends before
that, `serving` starts it again on the same port. The counters continue, because the ranks and the ledger keep them;
only Xids are counted from 0 again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from flatout.errors import FlatoutError, OutputError
from flatout.probe.nvml import Gpus
from flatout.probe.port_counters import read_port_counters
from flatout.records.watch import ExporterRequest
from flatout.watch.exporter.collector import Collector, HostSources
from flatout.watch.exporter.host_metrics import XidCounts
from flatout.watch.exporter.network_latency import measured_latencies
from flatout.watch.exporter.otlp import Pusher, otlp_exporter
from flatout.watch.exporter.storage_metrics import read_storage

_PATIENCE_S = 10.0
_RESTART_PAUSES_S = (0.5, 2.0, 10.0, 60.0)  # before each restart; the last one repeats


@contextmanager
def serving(request: ExporterRequest, say: Callable[[str], object]) -> Iterator[None]:
    """Serve the metrics while the context is open. Raise OutputError if the exporter does not start."""
    exporter = _Supervised(request)
    try:
        say(f"metrics at {exporter.start()}")
        yield
    finally:
        exporter.stop()


class _Supervised:
    """The exporter's process, started again if it ends."""

    def __init__(self, request: ExporterRequest) -> None:
        self._request = request
        self._process: subprocess.Popen[str] | None = None
        self._stops = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> str:
        """Start the exporter and its supervision, and return its address."""
        request = self._request
        answer = self._start()
        if not answer.startswith("http"):
            raise OutputError(
                f"metrics cannot be served at {request.address}:{request.port}: "
                f"{answer or 'the exporter does not start'}",
                hint="pass another --metrics-port, or 0 for any free port",
            )
        port = int(answer.rpartition(":")[2].partition("/")[0])
        self._request = msgspec.structs.replace(request, port=port)
        self._supervisor.start()
        return answer

    def stop(self) -> None:
        self._stops.set()
        _end(self._process)
        if self._supervisor.is_alive():
            self._supervisor.join(_PATIENCE_S)
        _end(self._process)  # it may have been started again meanwhile

    def _start(self) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "flatout.watch.exporter.process", msgspec.json.encode(self._request).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # signals to our process group are not meant for it
        )
        self._process = process
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def _supervise(self) -> None:
        num_starts = 0
        while self._process is not None:
            self._process.wait()
            pause_s = _RESTART_PAUSES_S[min(num_starts, len(_RESTART_PAUSES_S) - 1)]
            if self._stops.wait(pause_s):
                return
            num_starts += 1
            self._request = msgspec.structs.replace(self._request, num_starts=num_starts)
            _end(self._process)
            with suppress(OSError):
                self._start()


def _end(process: subprocess.Popen[str] | None) -> None:
    """Close the exporter's standard input, which asks it to end, and wait for that."""
    if process is None or process.stdin is None or process.stdout is None:
        return
    with suppress(OSError):
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_S)
    process.stdout.close()
    if process.poll() is None:
        process.kill()
        process.wait()


def serve(request: ExporterRequest, collector: Collector) -> tuple[Any, int]:
    """Return the server and its port."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise FlatoutError("metrics require the package prometheus-client") from error
    registry = CollectorRegistry()
    registry.register(collector)  # type: ignore[arg-type, unused-ignore]
    server, _ = start_http_server(request.port, addr=request.address, registry=registry)
    return server, int(server.server_port)


def host_sources() -> HostSources:
    """Return the sources of this host."""
    gpus = Gpus()
    return HostSources(
        gpus=gpus.counters,
        ports=read_port_counters,
        xids=XidCounts(gpus.xids().read),
        storage=read_storage,
        latencies=measured_latencies(),
    )


def main(arguments: Sequence[str]) -> int:
    request = msgspec.json.decode(arguments[0], type=ExporterRequest)
    collector = Collector(request, host_sources())
    try:
        pusher = Pusher(collector.collect, otlp_exporter(request.otlp)) if request.otlp is not None else None
        server, number = serve(request, collector)
    except (OSError, FlatoutError) as error:
        print(getattr(error, "strerror", None) or error, flush=True)
        return 2
    address = request.address
    shown = f"[{address}]" if ":" in address else address
    print(f"http://{shown}:{number}/metrics", flush=True)
    if pusher is not None:
        pusher.start()
    sys.stdin.buffer.read()
    if pusher is not None:
        pusher.stop()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
