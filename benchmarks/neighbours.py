"""Four jobs on two hosts that share one ledger folder, one of them failing: does any job notice another?

    PYTHONPATH=src:. python benchmarks/neighbours.py [--rounds 6] [--out FILE]

Needs root, or user namespaces, and iproute2: the hosts are namespaces of host name, network and mounts of this machine,
joined by a virtual cable. `tests/keep/four_jobs.py` has the jobs and what is right. Here `pair` is a torchrun job of
two nodes whose rank 1 is killed once, so both nodes restart it. In every second round all jobs have one name:
`FLATOUT_JOB=100`, and `--rdzv-id 100` for the pair.
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

from tests.cabled_nodes import ADDRESSES, cabled_nodes
from tests.keep.four_jobs import Part, ledger_events, light_parts, run_four_jobs

JOB = Path(__file__).parents[1] / "tests" / "jobs" / "keep_job.py"
PORT = 29641


def pair(folder: Path, port: int, name: str | None) -> list[Part]:
    """Return the parts of the torchrun job on both nodes."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1")
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{port}")
    named = () if name is None else (f"--rdzv-id={name}",)
    job = (str(JOB), f"--out={folder / 'out'}", "--fault=kill", "--at=22", "--rank=1")
    return [Part("pair", node, (*launcher, *meeting, *named, *job)) for node in (0, 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    given = parser.parse_args()
    rounds = []
    for number in range(given.rounds):
        name = "100" if number % 2 else None
        with tempfile.TemporaryDirectory() as temporary, cabled_nodes(Path(temporary)) as nodes:
            folder = Path(temporary) / "shared"
            folder.mkdir()

            def start(
                node: int,
                command: Sequence[str],
                output: Path,
                variables: Mapping[str, str],
                *,
                nodes: Sequence[object] = nodes,
                folder: Path = folder,
                name: str | None = name,
            ) -> subprocess.Popen[bytes]:
                is_pair = any("torch.distributed.run" in word for word in command)
                named = {"FLATOUT_JOB": name} if name is not None and not is_pair else {}
                return nodes[node].start(command, output, cwd=folder, **variables, **named)  # type: ignore[attr-defined, no-any-return]

            parts = [part for part in light_parts(bug_after_s=8 + 3 * number, well_after_s=60) if part.job != "pair"]
            began = time.monotonic()
            parts += pair(folder, PORT + number, name)
            outcome = run_four_jobs(parts, folder, start, limit_s=300)
            wrong = outcome.wrong(restarts_of_pair=1, has_one_name=name is not None)
            result = {
                "name of all jobs": name,
                "seconds": round(time.monotonic() - began, 1),
                "exit codes": outcome.codes,
                "wrong": wrong,
            }
            if wrong:
                result |= {"said": outcome.said, "ledgers": ledger_events(folder)}
            rounds.append(result)
            print(json.dumps(result), file=sys.stderr, flush=True)
    text = json.dumps({"rounds": rounds, "rounds with a wrong answer": sum(bool(each["wrong"]) for each in rounds)})
    print(text)
    if given.out:
        given.out.write_text(json.dumps(json.loads(text), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
