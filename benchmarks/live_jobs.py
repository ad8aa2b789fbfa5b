"""Jobs of four gloo ranks with a planted fault: when does `flatout watch` find it, and does it name rank and cause?

    PYTHONPATH=src python benchmarks/live_jobs.py [--only NAME] [--step-ms 60] [--out FILE]

Each job runs under `flatout run --ledger` with 60 ms per step; the fault begins at step 500. The diagnosis of `flatout
watch` looks at the job once per second, as its view does. The same step times are given to Page-Hinkley's test and to a
fixed threshold (see `live_diagnosis.py`), which name no rank and no cause. The delay is in steps, from the fault to the
step up to which the diagnosis had looked when it first reported. `throttled-link` needs root and iproute2: all ranks
are in a network namespace whose loopback gets a rate of 100 Mbit/s. `none` is a job without a fault.

Ranks compute by sleeping, so that a busy machine does not disturb them more than a cluster would; the load of the
machine is in the result. A report that puts a slowdown down to other programs is counted apart: on a busy machine it is
no false one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kept_result import keep
from live_diagnosis import page_hinkley_alarms, threshold_alarms

from flatout.records.watch import LiveFinding, WatchStatus
from flatout.watch.jobs import RunningJob, running_jobs
from flatout.watch.view.gpu_status import GpuReadings
from flatout.watch.view.run_status import RunStatus

JOB = Path(__file__).with_name("live_diagnosis_job.py")
NUM_RANKS, RANK, AT = 4, 2, 500
STOPPED_S = 20.0
LINK = ("rate", "100mbit", "burst", "64kb", "latency", "400ms")

CASES: dict[str, dict[str, Any]] = {
    "none": {"fault": "none", "cause": None, "ranks": [], "num_steps": 1500},
    "slow-5%": {"fault": "slow", "share": 0.05, "cause": "late_rank", "ranks": [RANK]},
    "slow-10%": {"fault": "slow", "share": 0.10, "cause": "late_rank", "ranks": [RANK]},
    "slow-20%": {"fault": "slow", "share": 0.20, "cause": "late_rank", "ranks": [RANK]},
    "loader-decay": {"fault": "loader", "cause": "data_loading", "ranks": [], "num_steps": 1500},
    "memory": {"fault": "memory", "cause": "memory", "ranks": [RANK], "num_steps": 1400},
    "stopped": {"fault": "stopped", "cause": "stopped", "ranks": [RANK], "num_steps": 700},
    "throttled-link": {"fault": "link", "cause": "communication", "ranks": [], "width": 256},
}
DEFAULTS = {"num_steps": 1100, "at": AT, "rank": RANK, "share": 0.0, "batch": 4, "width": 64}


class Observer:
    """Looks at a job once per second, as `flatout watch` does, and notes what begins."""

    def __init__(self, job: RunningJob) -> None:
        self._source = RunStatus(job, GpuReadings())
        self.reports: list[dict[str, Any]] = []
        self._seen: set[tuple[Any, ...]] = set()
        self.step_times: dict[int, float] = {}

    def look(self) -> int:
        """Return the step that all ranks have reached."""
        status = self._source.read()
        for sample in self._source.heartbeats.read()[:1]:
            self.step_times |= {each.step: each.duration_s - each.away_s for each in sample.recent}
        step = reached(status)
        for finding in status.findings:
            self._note(finding, step)
        return step

    def _note(self, finding: LiveFinding, step: int) -> None:
        key = (finding.cause, finding.ranks, finding.first_step, finding.last_step)
        if key in self._seen:
            return
        self._seen.add(key)
        self.reports.append(
            {
                "seen_at_step": step,
                "cause": finding.cause,
                "ranks": list(finding.ranks),
                "first_step": finding.first_step,
                "last_step": finding.last_step,
                "before_ms": round(finding.before_s * 1e3, 2),
                "after_ms": round(finding.after_s * 1e3, 2),
                "cost_gpu_s": round(finding.cost_gpu_h * 3600, 2),
            }
        )


def reached(status: WatchStatus) -> int:
    return min((rank.steps or 0 for rank in status.ranks), default=0)


@contextmanager
def started(planted: dict[str, Any], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job, in a network namespace of its own if its link is to be throttled."""
    own_network = ["unshare", "--net", "sh", "-c", 'ip link set lo mtu 1500 up && exec "$@"', "sh"]
    launcher = ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={NUM_RANKS}", "--master-addr=127.0.0.1"]
    launcher += [f"--master-port={29500 + os.getpid() % 1000}", str(JOB), json.dumps(planted)]
    run = [sys.executable, "-m", "flatout", "run", "--ledger", str(folder / "ledger.jsonl"), "--", sys.executable]
    prefix = own_network if planted["fault"] == "link" else []
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([*prefix, *run, *launcher], stdout=output, stderr=output, env=environment)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


def job_of(process: subprocess.Popen[bytes], folder: Path) -> RunningJob:
    deadline = time.monotonic() + 120
    ledger = Path(os.path.realpath(folder / "ledger.jsonl"))
    while time.monotonic() < deadline and process.poll() is None:
        for job in running_jobs():
            if job.ledger == ledger:
                return job
        time.sleep(0.5)
    raise SystemExit((folder / "output").read_text())


def throttled(job: RunningJob) -> None:
    command = ["nsenter", f"--net=/proc/{job.pid}/ns/net", "tc", "qdisc", "add", "dev", "lo", "root", "tbf", *LINK]
    subprocess.run(command, check=True)


def stopped(job: RunningJob) -> None:
    """Stop one rank for some time."""
    source = RunStatus(job, GpuReadings())
    (pid,) = [rank.pid for rank in source.read().ranks if rank.rank == RANK and rank.pid is not None]
    os.kill(pid, signal.SIGSTOP)
    subprocess.Popen(["sh", "-c", f"sleep {STOPPED_S}; kill -CONT {pid}"])


FROM_OUTSIDE: dict[str, Callable[[RunningJob], None]] = {"link": throttled, "stopped": stopped}


def watched(planted: dict[str, Any], folder: Path) -> tuple[Observer, int]:
    """Run the job to its end. Return what was observed, and the step at which the fault began."""
    with started(planted, folder) as process:
        job = job_of(process, folder)
        observer = Observer(job)
        began: int | None = planted["at"] if planted["fault"] not in FROM_OUTSIDE else None
        while process.poll() is None:
            step = observer.look()
            if began is None and step >= planted["at"]:
                FROM_OUTSIDE[planted["fault"]](job)
                began = step
            time.sleep(1.0)
    if process.returncode != 0:
        raise SystemExit((folder / "output").read_text())
    assert began is not None, "the job ended before its fault"
    return observer, began


def judged(case: dict[str, Any], observer: Observer, began: int) -> dict[str, Any]:
    """Compare the reports with what was planted."""
    after = [report for report in observer.reports if report["seen_at_step"] >= began]
    right = [report for report in after if report["cause"] == case["cause"] and report["ranks"] == case["ranks"]]
    blamed = [report for report in observer.reports if report["cause"] != "noisy_neighbour"]
    first, named = next(iter(after), None), next(iter(right), None)
    times = [observer.step_times[step] for step in sorted(observer.step_times)]
    offset = min(observer.step_times, default=0)

    def delay(alarms: list[int]) -> int | None:
        late = [alarm + offset - began for alarm in alarms if alarm + offset > began]
        return late[0] if late else None

    return {
        "began_at_step": began,
        "steps_to_first_report": None if first is None else first["seen_at_step"] - began,
        "steps_to_right_rank_and_cause": None if named is None else named["seen_at_step"] - began,
        "false_reports": sum(case["cause"] is None or report["seen_at_step"] < began for report in blamed),
        "put_down_to_other_programs": len(observer.reports) - len(blamed),
        "last_cause": after[-1]["cause"] if after else None,
        "last_ranks": after[-1]["ranks"] if after else None,
        "page_hinkley_steps": delay(page_hinkley_alarms(times)),
        "fixed_threshold_steps": delay(threshold_alarms(times)),
        "step_ms_before": round(1e3 * sorted(times[100 : began - offset])[(began - offset - 100) // 2], 2),
        "reports": observer.reports,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(CASES), help="repeatable")
    parser.add_argument("--step-ms", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"step_ms": arguments.step_ms, "num_cores": os.cpu_count(), "jobs": {}}
    for name in arguments.only or CASES:
        planted = {**DEFAULTS, **CASES[name], "step_s": arguments.step_ms / 1e3}
        with tempfile.TemporaryDirectory() as folder:
            observer, began = watched(planted, Path(folder))
        load = os.getloadavg()[0]
        result["jobs"][name] = {**judged(CASES[name], observer, began), "load_1min": round(load, 1)}
        print(name, {key: value for key, value in result["jobs"][name].items() if key != "reports"}, file=sys.stderr)
        if arguments.out is not None:  # a job that fails later loses nothing
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    keep(result, arguments.out)


if __name__ == "__main__":
    main()
