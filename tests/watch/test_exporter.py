"""The exporter: what it serves is the ledger, in a form that Prometheus' own tools accept, on the loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.keep.beating import Clock, Rank
from tests.watch.nvml import FakeNvml, h100
from tests.watch.test_host_metrics import adapter

import flatout as package
from flatout.errors import OutputError
from flatout.keep.ledger import LedgerFile
from flatout.probe.gpu_counters import read_gpu_counters
from flatout.probe.port_counters import read_port_counters
from flatout.records.watch import ExporterRequest, JobLabels
from flatout.watch.emit.dashboards.all import DASHBOARDS
from flatout.watch.emit.scrape_config import scrape_config_text
from flatout.watch.emit.targets import rules_text
from flatout.watch.exporter.collector import Collector, HostSources
from flatout.watch.exporter.host_metrics import XidCounts
from flatout.watch.exporter.process import serve, serving

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("prometheus_client", reason="the package prometheus-client is not installed")
S = 10**9
SOURCE = str(Path(package.__file__).parents[1])


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    writer = LedgerFile(tmp_path / "ledger.jsonl")
    writer.write("run", command="train", num_devices=2, gpu=None)
    writer.write("attempt", attempt=0)
    writer.write("seconds", attempt=0, num_devices=2, ns={"productive": 6 * S, "data": 2 * S}, steps=3)
    writer.close()
    clock = Clock()
    for number in range(2):
        rank = Rank(tmp_path / "attempt-0", number, 2, clock, monkeypatch)
        for _ in range(4):
            rank.spends("compute", S // 2)
            rank.steps()
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def address(ledger: Path) -> Iterator[str]:
    said: list[str] = []
    with serving(request_for(ledger), said.append):
        yield said[0].removeprefix("metrics at ")


def request_for(ledger: Path, port: int = 0) -> ExporterRequest:
    labels = JobLabels(job="train", job_id="7", host="n1")
    return ExporterRequest(
        ledger=str(ledger), state=str(ledger.parent), address="127.0.0.1", port=port, labels=labels, promised_step_s=0.5
    )


def scrape(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


CONSTANT = re.compile(r'(?:job|job_id|host)="[^"]*",?')


def values(text: str) -> dict[str, float]:
    """Return the samples by name and labels, without those that all of the job have."""
    rows = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    found = {}
    for name, _, value in rows:
        assert 'job="' in name and 'job_id="' in name and 'host="' in name, name
        own = CONSTANT.sub("", name).replace("{}", "").replace(",}", "}")
        found[own] = float(value)
    return found


def test_it_serves_the_ledger_as_it_grows_and_the_ranks_step_times(address: str, ledger: Path) -> None:
    found = values(scrape(address))
    assert found['flatout_device_seconds_total{class="productive"}'] == 6
    assert found['flatout_device_seconds_total{class="hang"}'] == 0
    assert found["flatout_goodput_ratio"] == 0.75
    assert found['flatout_rank_steps{rank="1"}'] == 4
    assert found['flatout_step_seconds_count{rank="0"}'] == 3, "the first step is no step time"
    assert found['flatout_step_seconds_sum{rank="0"}'] == pytest.approx(1.5)
    bounds = {
        float(name.partition('le="')[2].partition('"')[0]): value
        for name, value in found.items()
        if name.startswith("flatout_step_seconds_bucket") and 'rank="0"' in name
    }
    assert sum(bound < 0.5 for bound in bounds) > 10 and all(not bounds[bound] for bound in bounds if bound < 0.5)
    assert all(bounds[bound] == 3 for bound in bounds if bound >= 0.5 * 1.05)
    assert found['flatout_step_block_median_seconds{rank="1"}'] == pytest.approx(0.5)
    assert found["flatout_step_seconds_promised"] == 0.5 and found["flatout_world_size"] == 2
    assert found['flatout_rank_part_seconds_total{part="compute",rank="1"}'] == pytest.approx(2.0)
    writer = LedgerFile(ledger)
    writer.write("seconds", attempt=0, num_devices=2, ns={"hang": 8 * S}, steps=0)
    writer.close()
    found = values(scrape(address))
    assert found['flatout_device_seconds_total{class="hang"}'] == 8 and found["flatout_goodput_ratio"] == 0.375


def test_it_listens_on_the_loopback_only_and_names_the_host_as_it_is_told(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    port = int(address.rpartition(":")[2].partition("/")[0])
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for other in others - {"127.0.0.1", "127.0.1.1"}:
        with socket.socket() as tried:
            tried.settimeout(2)
            assert tried.connect_ex((str(other), port)) != 0
    assert socket.gethostname() not in scrape(address), "the host is named as the request says"


def test_it_ends_with_its_parent_and_a_port_that_is_taken_is_one_line(ledger: Path, address: str) -> None:
    port = int(address.rpartition(":")[2].partition("/")[0])
    with (
        pytest.raises(OutputError, match=f"cannot be served at 127.0.0.1:{port}: .*in use"),
        serving(request_for(ledger, port), print),
    ):
        pass


def listens_at(port: int, process: psutil.Process) -> bool:
    return any(each.laddr and each.laddr.port == port for each in process.net_connections())


# The host's own counters, which other processes of the machine move on while the exporter is started again.
COUNTED_BY_THE_HOST = ("flatout_storage_", "flatout_port_")


def test_it_is_started_again_on_the_same_port_and_its_counters_continue(ledger: Path) -> None:
    said: list[str] = []
    with serving(request_for(ledger), said.append):
        address = said[0].removeprefix("metrics at ")
        port = int(address.rpartition(":")[2].partition("/")[0])
        before = values(scrape(address))
        exporters = [process for process in psutil.Process().children() if listens_at(port, process)]
        assert len(exporters) == 1
        exporters[0].kill()
        deadline = time.monotonic() + 60
        after: dict[str, float] = {}
        while not after and time.monotonic() < deadline:
            time.sleep(0.1)
            with suppress(OSError, HTTPException):
                after = values(scrape(address))
    assert after["flatout_exporter_restarts_total"] == 1 + before["flatout_exporter_restarts_total"] == 1
    same = {name for name in before if "_total" in name or "_bucket" in name} - {"flatout_exporter_restarts_total"}
    of_host = {name for name in same if name.startswith(COUNTED_BY_THE_HOST)}
    of_job = same - of_host
    assert {name: after[name] for name in of_job} == {name: before[name] for name in of_job}
    assert all(after[name] >= before[name] for name in of_host)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_promtool_finds_nothing_to_complain_of(address: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(address), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


JOB = """\
import time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in DataLoader(TensorDataset(torch.ones(100_000, 8, dtype=torch.int64)), batch_size=2):
    model(torch.ones(1)).backward(); optimizer.step(); time.sleep(0.1)
"""


@contextmanager
def running_job(folder: Path) -> Iterator[str]:
    """Run a job under `flatout run`, and give the address of its metrics."""
    source = [path for path in (SOURCE, os.environ.get("PYTHONPATH")) if path]
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "run", "--metrics-port=0", "--", sys.executable, "-c", JOB],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(source), "FLATOUT_JOB": "demo"},
        cwd=folder,
    )
    assert process.stderr is not None
    try:
        yield process.stderr.readline().removeprefix("flatout: metrics at ").strip()
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def server_with_gpus(folder: Path) -> tuple[Any, int]:
    """Serve the counters of two invented GPUs and a port, as a host of the job does."""
    adapter(folder, "mlx5_0", port_rcv_data=9, port_xmit_data=9, port_rcv_errors=0, port_xmit_discards=0,
            roce_adp_retrans=0)  # fmt: skip
    counters = read_gpu_counters(FakeNvml(), [h100(0), h100(1)])
    sources = HostSources(gpus=lambda: counters, ports=lambda: read_port_counters(folder), xids=XidCounts(list))
    labels = JobLabels(job="demo", job_id="", host="n2")
    request = ExporterRequest(ledger="/dev/null", state=str(folder), address="127.0.0.1", port=0, labels=labels)
    return serve(request, Collector(request, sources))


@contextmanager
def running_prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """Run Prometheus with the emitted configuration and rules, but faster, and give its address."""
    (folder / "flatout-rules.yml").write_text(rules_text())
    (folder / "prometheus.yml").write_text(scrape_config_text(targets).replace("15s", "1s"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "GOMAXPROCS": "1"},
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def asked(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """Return the series of an expression; none while Prometheus does not answer."""
    query = f"{prometheus}/api/v1/query?query={urllib.request.quote(expression)}"
    with suppress(OSError), urllib.request.urlopen(query, timeout=10) as answer:
        return list(json.load(answer)["data"]["result"])
    return []


def panel_expressions() -> set[str]:
    """Return the expressions of all dashboards, with Grafana's variables as Grafana replaces them."""
    expressions = set()
    for dashboard in DASHBOARDS:
        for row in dashboard.rows:
            for panel in row:
                expressions |= {query.expression for query in panel.queries}
    replaced = {expression.replace("$__rate_interval", "10s") for expression in expressions}
    return {re.sub(r"\$\w+", ".*", expression) for expression in replaced}


# One process has no exchange of gradients; what DDP times is in `test_host_metrics`, and what a recording gives is in
# `test_rates`. This job reads no disk.
ELSEWHERE = (
    "flatout_rank_lateness_seconds",
    "flatout_exposed_communication_seconds",
    "flatout_communication_compute_ratio",
    "flatout_mfu_ratio",
    "rate(flatout_storage",
)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_every_panel_shows_something_of_a_real_job_in_a_real_prometheus(tmp_path: Path) -> None:
    server, gpu_port = server_with_gpus(tmp_path)
    unseen = {each for each in panel_expressions() if not each.startswith(ELSEWHERE)}
    with running_job(tmp_path) as address:
        own = address.removeprefix("http://").partition("/")[0]
        with running_prometheus(tmp_path, [own, f"127.0.0.1:{gpu_port}"]) as prometheus:
            deadline = time.monotonic() + 90
            while unseen and time.monotonic() < deadline:
                time.sleep(1)
                unseen = {each for each in unseen if not asked(prometheus, each)}
            found = {series["metric"]["job"] for series in asked(prometheus, "flatout_rank_up")}
            rules = asked(prometheus, 'ALERTS{alertname="FlatoutWatchdog", alertstate="firing"}')
        sample = values(scrape(address))
    server.shutdown()
    server.server_close()
    assert unseen == set()
    assert found == {"demo"}, "the label of the training is not the name of the scrape job"
    assert rules
    assert sample['flatout_device_seconds_total{class="productive"}'] > 0
    assert sample['flatout_step_block_median_seconds{rank="0"}'] >= 0.1
    with pytest.raises(OSError, match="refused"):
        scrape(address)
