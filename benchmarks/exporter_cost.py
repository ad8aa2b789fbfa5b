"""What the exporter of `flatout run --metrics-port` costs a job on two cores: CPU per scrape, memory, and step times.

    PYTHONPATH=src python benchmarks/exporter_cost.py [--blocks 20] [--block-s 10] [--out FILE]

Two gloo ranks compute on one thread each, so that both cores are busy. Blocks in which nobody scrapes alternate with
blocks in which the exporter is scraped once per second, 15 times as often as Prometheus does. The CPU time of a scrape
is that of the exporter's process in /proc, divided by the scrapes; its share is of two cores at one scrape in 15 s. The
step times of both kinds of blocks are compared as pairs.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, stdev

import psutil
from kept_result import keep

from flatout.inside.protocol import HEARTBEAT_RECENT
from flatout.watch.exporter.collector import LatestHeartbeats
from flatout.watch.jobs import RunningJob, running_jobs

SCRAPES_PER_S, PROMETHEUS_S, CORES = 1.0, 15.0, 2
JOB = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for (batch,) in DataLoader(TensorDataset(torch.randn(20_000, 512)), batch_size=256):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20


@contextmanager
def job(folder: Path) -> Iterator[tuple[RunningJob, str]]:
    """Start the job, and give it with the address of its metrics."""
    (folder / "job.py").write_text(JOB)
    port = 29_600 + os.getpid() % 300
    launcher = ["-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    command = [sys.executable, *launcher, f"--master-port={port}", str(folder / "job.py")]
    flatout = [sys.executable, "-m", "flatout", "run", "--metrics-port", "0", "--"]
    process = subprocess.Popen([*flatout, *command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = ""
        while not (found := re.search(r"metrics at (\S+)", address)):
            address = process.stderr.readline()
            if not address:
                raise SystemExit("the job does not start")
        yield _found(process.pid), found[1]
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def _found(pid: int) -> RunningJob:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for each in running_jobs():
            if each.pid == pid and LatestHeartbeats(each.folder).read():
                return each
        time.sleep(0.5)
    raise SystemExit("the job makes no steps")


def exporter_of(pid: int) -> psutil.Process:
    children = psutil.Process(pid).children()
    return next(each for each in children if "flatout.watch.exporter.process" in " ".join(each.cmdline()))


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def block(heartbeats: LatestHeartbeats, seconds: float, address: str | None) -> tuple[float, list[float]]:
    """Return the mean step time of the ranks in a block, and how long each scrape took."""
    before = {sample.rank: (sample.num_steps, sample.last_step_end_s or 0.0) for sample in heartbeats.read()}
    scrapes = []
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        if address is not None:
            began_s = time.perf_counter()
            with urllib.request.urlopen(address, timeout=30) as answer:
                answer.read()
            scrapes.append(time.perf_counter() - began_s)
        time.sleep(min(1 / SCRAPES_PER_S, max(left_s, 0.01)))
    steps = []
    for sample in heartbeats.read():
        num_steps, at_s = before[sample.rank]
        steps.append(((sample.last_step_end_s or 0.0) - at_s) / (sample.num_steps - num_steps))
    return mean(steps), scrapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks")
    parser.add_argument("--block-s", type=float, default=10.0)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, job(Path(name)) as (running, address):
        heartbeats = LatestHeartbeats(running.folder)
        exporter, agent = exporter_of(running.pid), psutil.Process(running.pid)
        time.sleep(5)
        block(heartbeats, 5, address)
        cpu_before_s, scrapes, ratios = cpu_s(exporter), [], []
        for number in range(arguments.blocks):
            order = (None, address) if number % 2 == 0 else (address, None)  # ABBA
            step_s = {}
            for each in order:
                step_s[each], took = block(heartbeats, arguments.block_s, each)
                scrapes += took
            ratios.append(step_s[address] / step_s[None])
        per_scrape_s = (cpu_s(exporter) - cpu_before_s) / len(scrapes)
        memory = exporter.memory_info().rss, exporter.memory_full_info().uss, agent.memory_info().rss
        num_samples = len(urllib.request.urlopen(address).read().splitlines())
    reach = 1.96 * stdev(ratios) / math.sqrt(len(ratios))
    keep(
        {
            "num_cores": os.cpu_count(),
            "load_1min": round(os.getloadavg()[0], 1),
            "ranks": 2,
            "lines_of_a_scrape": num_samples,
            "recent_steps_kept": HEARTBEAT_RECENT,
            "scrapes": len(scrapes),
            "cpu_ms_per_scrape": round(per_scrape_s * 1e3, 2),
            "scrape_ms_median": round(median(scrapes) * 1e3, 1),
            "share_of_two_cores_at_one_scrape_in_15_s": round(per_scrape_s / (PROMETHEUS_S * CORES), 6),
            "step_time_ratio_at_one_scrape_per_s": round(mean(ratios), 4),
            "its_95_percent_interval": [round(mean(ratios) - reach, 4), round(mean(ratios) + reach, 4)],
            "exporter_rss_mib": round(memory[0] / _MIB, 1),
            "exporter_uss_mib": round(memory[1] / _MIB, 1),
            "flatout_run_rss_mib": round(memory[2] / _MIB, 1),
        },
        arguments.out,
    )


if __name__ == "__main__":
    main()
