"""`python -m flatout.keep.exporter LEDGER ADDRESS PORT`: serve a ledger and the ranks' step times to Prometheus.

It runs as a separate process and reads the files that `flatout run` writes, so a scrape never delays the monitoring of
the job. It exits when its standard input closes, which happens when its parent ends for any reason. There are few
labels: the class of time, and the rank's number on this host.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, OutputError
from flatout.input_files import open_file
from flatout.keep.account import CLASSES
from flatout.keep.heartbeats import HeartbeatReader, HeartbeatSample, ranks_of
from flatout.keep.ledger import LedgerAccumulator
from flatout.keep.step_breakdown import PARTED

_PATIENCE_S = 10.0
# The heartbeat's buckets of step times are powers of two, from 2**20 ns (1 ms) to 2**40 ns (18 minutes).
_FIRST_BUCKET, _LAST_BUCKET = 20, 40


class LedgerTail:
    """A growing ledger, read incrementally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._rest = b""
        self.totalling = LedgerAccumulator()

    def look(self) -> None:
        with suppress(OSError), open_file(self._path) as file:
            file.seek(self._place)
            added = file.read()
            self._place += len(added)
            *lines, self._rest = (self._rest + added).split(b"\n")
            for line in lines:
                self.totalling.add(line)


class Collector:
    """The collector that `prometheus_client` calls at each scrape."""

    def __init__(self, ledger: Path, state: Path | None) -> None:
        self._ledger = LedgerTail(ledger)
        self._state = state
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        with self._lock:
            self._ledger.look()
            totals = self._ledger.totalling.totals()
            ranks = self._ranks()
        seconds = CounterMetricFamily(
            "flatout_device_seconds", "Device time of the job by class, in seconds.", labels=["class"]
        )
        for name in CLASSES:
            if name in PARTED and not totals.known_share(name):  # its time is counted inside another class
                continue
            seconds.add_metric([name], totals.ns.get(name, 0) / 1e9)
        yield seconds
        for name, text, value in (
            ("flatout_attempts", "Attempts of the job.", totals.num_attempts),
            ("flatout_failures", "Failed attempts, excluding hangs.", totals.num_failures),
            ("flatout_hangs", "Attempts that hung.", totals.num_hangs),
        ):
            yield CounterMetricFamily(name, text, value=value)
        if totals.num_devices is not None:
            yield GaugeMetricFamily("flatout_devices", "Number of devices held by the job.", value=totals.num_devices)
        if totals.goodput is not None:
            yield GaugeMetricFamily(
                "flatout_goodput_ratio",
                "Share of device time in which new steps were made.",
                value=totals.goodput,
            )
        steps = GaugeMetricFamily("flatout_rank_steps", "Steps that each rank made in this attempt.", labels=["rank"])
        times = HistogramMetricFamily(
            "flatout_step_seconds", "Step times of each rank in this attempt.", labels=["rank"]
        )
        for pulse in ranks:
            steps.add_metric([str(pulse.rank)], pulse.num_steps)
            times.add_metric([str(pulse.rank)], _buckets(pulse), sum_value=_sum_s(pulse))
        yield steps
        yield times

    def _ranks(self) -> list[HeartbeatSample]:
        folders = sorted(self._state.glob("attempt-*"), key=lambda path: path.stat().st_mtime) if self._state else []
        if not folders:
            return []
        beats = HeartbeatReader(folders[-1])
        try:
            return ranks_of(beats.read())
        finally:
            beats.close()


def _buckets(pulse: HeartbeatSample) -> list[tuple[str, float]]:
    found, total = [], sum(pulse.step_buckets[:_FIRST_BUCKET])
    for bucket in range(_FIRST_BUCKET, _LAST_BUCKET + 1):
        total += pulse.step_buckets[bucket]
        found.append((repr(2**bucket / 1e9), float(total)))
    return [*found, ("+Inf", float(sum(pulse.step_buckets)))]


def _sum_s(pulse: HeartbeatSample) -> float:
    if pulse.first_step_end_s is None or pulse.last_step_end_s is None:
        return 0.0
    return pulse.last_step_end_s - pulse.first_step_end_s


@contextmanager
def serving(ledger: Path, address: str, port: int, *, state: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Serve the ledger and the heartbeats below `state` while the context is open."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout.keep.exporter", str(ledger), address, str(port), str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # signals to our process group are not meant for it
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        answer = process.stdout.readline().strip()
        if not answer.startswith("http"):
            raise OutputError(
                f"metrics cannot be served at {address}:{port}: {answer or 'the exporter does not start'}",
                hint="pass another --metrics-port, or 0 for any free port",
            )
        say(f"metrics at {answer}")
        yield
    finally:
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_S)
        process.stdout.close()
        if process.poll() is None:
            process.kill()
            process.wait()


def serve(ledger: Path, address: str, port: int, state: Path | None = None) -> tuple[Any, int]:
    """Return the server and its port."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise FlatoutError("metrics require the package prometheus-client") from error
    registry = CollectorRegistry()
    registry.register(Collector(ledger, state))  # type: ignore[arg-type, unused-ignore]
    server, _ = start_http_server(port, addr=address, registry=registry)
    return server, int(server.server_port)


def main(arguments: Sequence[str]) -> int:
    ledger, address, port, *state = arguments
    try:
        server, number = serve(Path(ledger), address, int(port), Path(state[0]) if state else None)
    except (OSError, FlatoutError) as error:
        print(getattr(error, "strerror", None) or error, flush=True)
        return 2
    shown = f"[{address}]" if ":" in address else address
    print(f"http://{shown}:{number}/metrics", flush=True)
    sys.stdin.buffer.read()
    time.sleep(0)
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
