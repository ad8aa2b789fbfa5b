"""What `flatout run --adapt` does to real jobs of gloo ranks: which change, with what effect, and what it leaves alone.

    PYTHONPATH=src python benchmarks/adapt_jobs.py [--only NAME] [--out FILE]

`dry_run`     two jobs of 200 steps, one with `--adapt dry-run --adapt-semantic`: are their losses equal to the bit?
`memory`      a job whose microbatch of 8 does not fit and whose one of 2 does, beside a job that begins with 2
`late_rank`   three ranks, one of which needs 1.6 times as long for a sample: fewer samples for it
`exchange`    two ranks with a model of 4 M parameters and short steps, on a loopback of 1 Gbit/s: local SGD
`no_gain`     as `late_rank`, on a job whose ranks take no less time with fewer samples: undone at the next checkpoint
`late_node`   three nodes of an elastic torchrun (own host names, one loopback), one of which is 2.5 times slower

Needs root for `late_node` (`unshare --uts`) and for `exchange` (`unshare --net`, and iproute2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from kept_result import keep

JOB = Path(__file__).with_name("adapt_job.py")
PORT = 29_600 + os.getpid() % 300
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
_LINK = "ip link set lo mtu 1500 up && tc qdisc add dev lo root tbf rate 1gbit burst 128kb latency 50ms"
SLOW_LINK = ("unshare", "--net", "sh", "-c", f'{_LINK} && exec "$@"', "sh")  # both directions share the rate


def words(folder: Path, options: list[str], ranks: int, job: list[str]) -> list[str]:
    """Return `flatout run` of a job on one node."""
    launcher = ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1"]
    run = [sys.executable, "-m", "flatout", "run", "--ledger", str(folder / "ledger.jsonl"), *resumes(folder), *options]
    return [*run, "--", sys.executable, *launcher, f"--master-port={PORT}", str(JOB), f"--out={folder / 'out'}", *job]


def resumes(folder: Path) -> list[str]:
    return ["--max-restarts=3", f"--checkpoint={folder / 'out' / 'ckpt.pt'}", "--resume-arg=--init_from=resume"]


def ran(folder: Path, options: list[str], ranks: int, job: list[str], prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run the job to its end, with words before its command. Return its adaptations and its losses."""
    folder.mkdir()
    environment = {**os.environ, **_ENVIRONMENT}
    done = subprocess.run(
        [*prefix, *words(folder, options, ranks, job)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return {"adaptations": adaptations(folder / "ledger.jsonl"), "losses": losses(folder), "steps": steps(folder)}


def adaptations(ledger: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key != "event"} for line in lines if line["event"] == "adaptation"
    ]


def rows(folder: Path, rank: int = 0) -> list[list[str]]:
    (path,) = (folder / "out").glob(f"losses-*-{rank}.txt")
    return [line.split() for line in path.read_text().splitlines()]


def losses(folder: Path) -> dict[int, str]:
    """Return the loss of each step, as it was computed last."""
    return {int(step): loss for step, loss, _ in rows(folder)}


def steps(folder: Path, last: int = 100) -> float:
    """Return the median time of the last steps in seconds."""
    times = [float(row[2]) for row in rows(folder)][-last:]
    return median(after - before for before, after in pairwise(times))


def told(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the adaptations without what identifies the run."""
    return [{key: value for key, value in each.items() if key != "unix_s"} for each in result["adaptations"]]


def dry_run(folder: Path) -> dict[str, Any]:
    job = ["--steps=200", "--slow-rank=1", "--slow=1.6", "--sample_s=0.003"]
    plain = ran(folder / "plain", [], 2, job)
    dry = ran(folder / "dry", ["--adapt=dry-run", "--adapt-semantic"], 2, job)
    return {"are_losses_equal": plain["losses"] == dry["losses"], "num_steps": len(dry["losses"]), "told": told(dry)}


def memory(folder: Path) -> dict[str, Any]:
    job = ["--steps=100", "--fits=2", "--sample_s=0.003"]
    options = ["--adapt=on", "--micro-batch=--batch,--passes"]
    adapted = ran(folder / "adapted", options, 2, [*job, "--batch=8", "--passes=1"])
    small = ran(folder / "small", [], 2, [*job, "--batch=2", "--passes=4"])
    return {"are_losses_equal": adapted["losses"] == small["losses"], "told": told(adapted)}


def late_rank(folder: Path) -> dict[str, Any]:
    job = ["--steps=700", "--slow-rank=1", "--slow=1.6", "--sample_s=0.005", "--batch=12"]
    result = ran(folder / "on", ["--adapt=on", "--adapt-semantic"], 3, job)
    return {"last_steps_s": result["steps"], "num_steps": len(result["losses"]), "told": told(result)}


def exchange(folder: Path) -> dict[str, Any]:
    job = ["--steps=500", "--sample_s=0.001", "--batch=8", "--width=400000"]
    result = ran(folder / "on", ["--adapt=on", "--adapt-semantic"], 2, job, SLOW_LINK)
    return {"last_steps_s": result["steps"], "num_steps": len(result["losses"]), "told": told(result)}


def no_gain(folder: Path) -> dict[str, Any]:
    job = ["--steps=900", "--slow-rank=1", "--slow=1.6", "--sample_s=0.005", "--batch=12", "--fixed"]
    result = ran(folder / "on", ["--adapt=on", "--adapt-semantic"], 3, job)
    return {"last_steps_s": result["steps"], "num_steps": len(result["losses"]), "told": told(result)}


def late_node(folder: Path) -> dict[str, Any]:
    """Run three nodes, each with its own host name and `flatout run`."""
    folder.mkdir(exist_ok=True)
    books = folder / "books"
    books.mkdir()
    (folder / "out").mkdir()
    launcher = ["-m", "torch.distributed.run", "--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    launcher += [f"--rdzv-endpoint={os.uname().nodename}:{PORT + 1}", "--rdzv-id=job", "--local-addr=127.0.0.1"]
    job = [str(JOB), f"--out={folder / 'out'}", "--steps=600", "--slow-node=n3", "--slow=2.5", "--sample_s=0.006"]
    processes = []
    for name in ("n1", "n2", "n3"):
        run = [sys.executable, "-m", "flatout", "run", "--ledger", str(books), "--adapt=on", *resumes(folder)]
        own_name = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"]
        host = f"--rdzv-conf=last_call_timeout=10,is_host={int(name == 'n1')}"
        with (folder / f"{name}.txt").open("wb") as output:
            processes.append(
                subprocess.Popen(
                    [*own_name, *run, "--", sys.executable, *launcher, host, *job],
                    env={**os.environ, **_ENVIRONMENT},
                    stdout=output,
                    stderr=output,
                )
            )
    codes = [process.wait(timeout=600) for process in processes]
    if any(codes):
        raise SystemExit("\n".join((folder / f"{name}.txt").read_text() for name in ("n1", "n2", "n3")))
    found = [each for ledger in sorted(books.glob("*.jsonl")) for each in adaptations(ledger)]
    return {"codes": codes, "told": told({"adaptations": found})}


CASES = {
    "dry_run": dry_run,
    "memory": memory,
    "late_rank": late_rank,
    "exchange": exchange,
    "no_gain": no_gain,
    "late_node": late_node,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(CASES), help="repeatable")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"num_cores": os.cpu_count(), "jobs": {}}
    for name in arguments.only or CASES:
        with tempfile.TemporaryDirectory() as folder:
            result["jobs"][name] = {**CASES[name](Path(folder)), "load_1min": round(os.getloadavg()[0], 1)}
        print(name, result["jobs"][name], file=sys.stderr)
        if arguments.out is not None:  # a job that fails later loses nothing
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    keep(result, arguments.out)


if __name__ == "__main__":
    main()
