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
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.keep.beating import Clock, Rank

import flatout as package
from flatout.errors import OutputError
from flatout.keep.ledger import LedgerFile
from flatout.records.watch import ExporterRequest, JobLabels
from flatout.watch.exporter.process import serving

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


def test_a_job_under_watch_can_be_scraped_while_it_runs_and_not_after(tmp_path: Path) -> None:
    program = (
        "import time, torch\nmodel = torch.nn.Linear(1, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(40):\n    model(torch.ones(1)).backward(); optimizer.step(); time.sleep(0.1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "run", "--metrics-port=0", "--", sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in (SOURCE, os.environ.get("PYTHONPATH")) if path),
        },
        cwd=tmp_path,
    )
    assert process.stderr is not None
    address = process.stderr.readline().removeprefix("flatout: metrics at ").strip()
    found: dict[str, float] = {}
    while process.poll() is None:
        try:
            found = values(scrape(address)) or found
        except OSError:
            break
        time.sleep(0.3)
    assert (process.wait(30), process.stderr.read()) == (0, "")
    process.stderr.close()
    assert found['flatout_device_seconds_total{class="productive"}'] > 0
    assert found['flatout_step_seconds_count{rank="0"}'] > 10
    with pytest.raises(OSError, match="refused"):
        scrape(address)


def test_it_is_started_again_on_the_same_port_and_its_counters_continue(ledger: Path) -> None:
    said: list[str] = []
    with serving(request_for(ledger), said.append):
        address = said[0].removeprefix("metrics at ")
        port = int(address.rpartition(":")[2].partition("/")[0])
        before = values(scrape(address))
        for process in psutil.Process().children():
            listens = any(one.laddr and one.laddr.port == port for one in process.net_connections())
            if listens:
                process.kill()
        deadline = time.monotonic() + 60
        after: dict[str, float] = {}
        while not after and time.monotonic() < deadline:
            time.sleep(0.1)
            with suppress(OSError):
                after = values(scrape(address))
    assert after["flatout_exporter_restarts_total"] == 1 + before["flatout_exporter_restarts_total"] == 1
    same = {name for name in before if "_total" in name or "_bucket" in name} - {"flatout_exporter_restarts_total"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_promtool_finds_nothing_to_complain_of(address: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(address), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_a_real_prometheus_scrapes_it_and_answers_a_query(address: str, tmp_path: Path) -> None:
    target = address.removeprefix("http://").partition("/")[0]
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: flatout, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "GOMAXPROCS": "1"},
    )
    query = f"http://127.0.0.1:{port}/api/v1/query?query="
    goodput = 'sum(flatout_device_seconds_total{class="productive"})/sum(flatout_device_seconds_total)'
    slow = "histogram_quantile(0.5,sum(flatout_step_seconds_bucket)by(le))"
    try:
        found: dict[str, float] = {}
        deadline = time.monotonic() + 30
        while len(found) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
            for expression in (goodput, slow):
                try:
                    with urllib.request.urlopen(query + urllib.request.quote(expression), timeout=5) as answer:
                        result = json.load(answer)["data"]["result"]
                except OSError:
                    continue
                if result:
                    found[expression] = float(result[0]["value"][1])
    finally:
        process.terminate()
        process.wait(20)
    assert found[goodput] == 0.75
    assert found[slow] == pytest.approx(0.5, rel=0.05)
