"""Does a node's word end only the ranks that ran beside it, in the attempt that runs? Real jobs on two hosts.

    PYTHONPATH=src:. python benchmarks/attempts_side_by_side.py [--rounds 3] [--out FILE]

Needs root, or user namespaces, and iproute2, as `neighbours.py`. Four jobs share one ledger folder:

- `tasks`: two tasks of one Slurm step with one command, each a world of its own. The task on the first host has a bug.
  To Flatout they are nodes of one job; their ranks were never side by side, so the other task must go on to its end.
- `pair`: a torchrun job on both hosts whose rank 1 is killed in the first attempt, and has a bug in all others. Both
  hosts must restart twice, and then end: the second host for its bug, the first on the word of the second.
- `well` on the second host, and `bug` on the first: jobs on one host that must not notice anybody.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.kept_result import keep
from tests.cabled_nodes import ADDRESSES, Node, cabled_nodes
from tests.keep.four_jobs import BUG, WELL, Part, ledger_events, run_four_jobs

PORT = 29741
TASK = """
import os, socket, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.1)
    if step == {at} and socket.gethostname() == "node-a":
        raise ValueError("the task on node-a has a bug")
print("done", flush=True)
"""
PAIR = """
import os, signal, sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
was_killed = os.path.exists("killed")
for step in range(400):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
    if rank == 1 and step == 40:
        if was_killed:
            raise ValueError("the pair has a bug on rank 1")
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""
CODES = {"tasks on 0": 1, "tasks on 1": 0, "well on 1": 0, "bug on 0": 1}


def parts(folder: Path, port: int, bug_after_s: float) -> list[Part]:
    (folder / "task.py").write_text(TASK.format(steps=900, at=60))
    (folder / "pair.py").write_text(PAIR)
    slurm = {"SLURM_JOB_ID": "8", "SLURM_NTASKS": "2"}
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{port}")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meeting)
    return [
        Part("bug", 0, (sys.executable, "-c", BUG.format(bug_after_s))),
        Part("well", 1, (sys.executable, "-c", WELL.format(100))),
        *(Part("tasks", node, (sys.executable, "task.py"), {**slurm, "SLURM_PROCID": str(node)}) for node in (0, 1)),
        *(Part("pair", node, (*launcher, "pair.py")) for node in (0, 1)),
    ]


def problems(codes: Mapping[str, int], said: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what is not as it should be; nothing if all is right."""
    found = [
        f"{part} ended with code {codes[part]} instead of {code}" for part, code in CODES.items() if codes[part] != code
    ]
    found += [f"{part} ended with code 0 in spite of its bug" for part in ("pair on 0", "pair on 1") if not codes[part]]
    for part in ("well on 1", "tasks on 1"):
        found += [f"{part} said: {line}" for line in said[part]]
    followed = "\n".join(said["pair on 0"])
    if "attempt 1 failed" not in followed or "does not restart it: the same failure" not in followed:
        found.append(f"pair on 0 did not restart and then end on the word of node-b: {followed}")
    for part, lines in said.items():
        foreign = [
            line for line in lines if ("the task on" in line) != part.startswith("tasks") and "the task on" in line
        ]
        foreign += [line for line in lines if "the pair has" in line and not part.startswith("pair")]
        foreign += [line for line in lines if "job A has" in line and not part.startswith("bug")]
        found += [f"{part} spoke of another job: {line}" for line in foreign]
    return found


def one_round(number: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as temporary, cabled_nodes(Path(temporary)) as nodes:
        folder = Path(temporary) / "shared"
        folder.mkdir()
        began = time.monotonic()
        outcome = run_four_jobs(
            parts(folder, PORT + number, 5 + 4 * number), folder, _starter(nodes, folder), limit_s=400
        )
        wrong = problems(outcome.codes, outcome.said)
        result = {"seconds": round(time.monotonic() - began, 1), "exit codes": outcome.codes, "wrong": wrong}
        return result | ({"said": outcome.said, "ledgers": ledger_events(folder)} if wrong else {})


def _starter(nodes: Sequence[Node], folder: Path) -> object:
    def start(node: int, command: Sequence[str], output: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return nodes[node].start(command, output, cwd=folder, **variables)

    return start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    given = parser.parse_args()
    rounds = []
    for number in range(given.rounds):
        rounds.append(one_round(number))
        print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
    keep({"rounds": rounds, "rounds with a wrong answer": sum(bool(each["wrong"]) for each in rounds)}, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
