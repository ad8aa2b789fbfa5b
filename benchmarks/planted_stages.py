"""Slow stages of real loaders, planted one at a time: what does `flatout data profile` name?

    PYTHONPATH=src:. python benchmarks/planted_stages.py [--out FILE]     # as root: it mounts a loop device

`planted_stages_job.py` trains from JPEG or compressed files with one worker. The storage is slow because the control
group of the job may read only 20 MB/s from its loop device; everything else is slow in the process. The expected answer
is in `EXPECTED`; a healthy loader must have none. That other programs keep the cores busy is an answer beside it, and
does not count. Exits with the number of wrong answers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.kept_result import keep
from benchmarks.loader_model import Group, SlowStorage
from benchmarks.planted_stages_job import STAGES, files_of

JOB = Path(__file__).with_name("planted_stages_job.py")
LIMIT = "20 MB/s"
EXPECTED = {
    "storage": {"storage-latency", "storage-bandwidth", "cache-missed"},  # the files would fit into memory
    "decompress": {"decompress-bound"},
    "decode": {"decode-bound"},
    "transform": {"transform-bound"},
    "code": {"dataset-code-bound"},
    "collate": {"collate-bound"},
    "healthy": set(),
}


def profiled(words: list[str], group: Group | None) -> dict[str, Any]:
    text = group.run(words) if group is not None else subprocess.run(words, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return result


def answer(stage: str, folder: Path) -> dict[str, Any]:
    out = folder / f"profile-{stage}"
    words = [sys.executable, "-m", "flatout", "data", "profile", "--json", "--out", str(out), "--"]
    job = [sys.executable, str(JOB), stage]
    if stage == "storage":
        with SlowStorage(folder, lambda files: files_of(stage, files)) as storage, Group(storage.number) as group:
            group.limit(LIMIT)
            profile = profiled([*words, *job, str(storage.folder), "15"], group)
    else:
        files = folder / f"files-{stage}"
        files.mkdir()
        files_of(stage, files)
        profile = profiled([*words, *job, str(files)], None)
    (rank,) = profile["ranks"]
    largest = max(rank["stages"], key=lambda each: each["wall_s"])
    names = [cause["name"] for cause in profile["causes"]]
    of_loader = [name for name in names if name != "busy-cores"]
    is_right = not of_loader if stage == "healthy" else bool(of_loader) and of_loader[0] in EXPECTED[stage]
    return {
        "planted": stage,
        "named": names,
        "is_right": is_right,
        "largest_stage": largest["name"],
        "its_share": round(largest["share"], 3),
        "sum_of_shares": round(sum(each["share"] for each in rank["stages"]), 3),
        "wait_share": round(rank["loader_wait_s"] / rank["step_s"], 3) if rank["step_s"] else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    parser.add_argument("--only", action="append", choices=(*STAGES, "healthy"), help="may be repeated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        answers = []
        for stage in arguments.only or (*STAGES, "healthy"):
            answers.append(answer(stage, Path(name)))
            print(answers[-1], file=sys.stderr, flush=True)
    num_wrong = sum(not each["is_right"] for each in answers)
    keep({"load_average": os.getloadavg()[0], "num_wrong": num_wrong, "answers": answers}, arguments.out)
    return num_wrong


if __name__ == "__main__":
    sys.exit(main())
