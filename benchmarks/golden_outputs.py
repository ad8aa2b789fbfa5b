"""Capture what many commands print, and compare two captures: a refactoring may change words, never numbers or keys.

    python benchmarks/golden_outputs.py capture build/golden/before [--only REGEX] [--checkout FOLDER]
    python benchmarks/golden_outputs.py compare build/golden/before build/golden/after

`capture` runs each command of `commands` with the Flatout of this checkout, or of another one (`git worktree add`),
in an empty folder, on the traces of `examples/` and on `../shared/data` where that exists, and keeps standard output,
standard error, the exit code and the pages that were written. `compare` prints each difference that is not of wording
alone: another exit code, another key, type or value of JSON, other numbers in a text or page, other elements of a
page. Items of a list that have an `id` are compared by it. It exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
TRACES = ROOT / "examples" / "traces"

# Values that differ between two runs of the same code.
UNSTABLE_KEYS = {"command", "tool_version", "created", "seconds", "path", "jobs_per_s", "layouts_per_s", "search_s"}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
UNSTABLE_LINE = re.compile(r"in [\d.]+ m?s\b|layouts (?:a|per) second|jobs (?:a|per) second|next:|/tmp/|^flatout .*--")

PLAN = "plan --model llama3-70b --cluster h100x512 --global-batch 1024 --seq 8192"
SLURM_JOBS = "{shared}/job_traces/philly.csv.gz"


def commands(shared: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the arguments of each command to capture; `shared` has public data, if it exists."""
    for trace in sorted(TRACES.glob("*.tar.xz")):
        name = trace.name.removesuffix(".tar.xz")
        yield f"diagnose-{name}", f"diagnose {trace} --json"
    yield "diagnose-text", f"diagnose {TRACES}/straggler.tar.xz --html page.html"
    yield "diagnose-fsdp-text", f"diagnose {TRACES}/fsdp_tcp.tar.xz --html page.html"
    yield "diff-text", f"diff {TRACES}/straggler.tar.xz {TRACES}/unbalanced.tar.xz"
    yield "diff-json", f"diff {TRACES}/straggler.tar.xz {TRACES}/unbalanced.tar.xz --json"
    yield "explain", "explain"
    yield "explain-json", "explain straggler --json"
    yield "plan-text", f"{PLAN} --html page.html"
    yield "plan-json", f"{PLAN} --json"
    yield "plan-goal", f'{PLAN} --goal "100B tokens in 30 days" --json'
    yield "plan-moe", "plan --model mixtral-8x7b --cluster h100x64 --global-batch 256 --seq 4096 --json"
    yield "prices", "cost --help"
    yield "missing", "diagnose nothing-here"
    if not shared.is_dir():
        return
    for trace in sorted((shared / "cases/traces").glob("*.tar.xz")):
        yield f"case-{trace.name.removesuffix('.tar.xz')}", f"diagnose {trace} --json"
    yield "plan-evaluate", f"plan evaluate {shared}/published_runs/published_runs.csv --json"
    yield "plan-evaluate-text", f"plan evaluate {shared}/published_runs/published_runs.csv"
    for cluster in ("n1", "n4", "n4d4"):
        arguments = f"--model llama3-8b --cluster {shared}/cases/plan/{cluster}.toml --global-batch 64 --seq 4096"
        yield f"plan-{cluster}", f"plan {arguments} --json"
    samples = ("kernel_logs", "nccl_logs", "nvidia_smi", "pci", "topo_m", "topo_xml", "sysfs_infiniband")
    for folder in samples:
        for sample in sorted((shared / "samples" / folder).iterdir()):
            yield f"doctor-{folder}-{sample.name}", f"doctor --from {sample} --json"
    for sample in sorted((shared / "cases/doctor").iterdir()):
        yield f"doctor-case-{sample.name}", f"doctor --from {sample}"
        yield f"doctor-case-{sample.name}-json", f"doctor --from {sample} --json"
    replay = f"schedule replay {shared}/cases/schedule/share_late.csv --nodes 1 --gpus-per-node 4"
    for policy in ("fifo", "flatout", "easy", "srtf", "las", "gittins", "tiresias", "goodput"):
        yield f"replay-{policy}", f"{replay} --policy {policy} --json"
    yield "replay-text", f"{replay} --policy fifo --policy flatout --html page.html"


class _Elements(HTMLParser):
    """The elements of a page in order, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] not in (["style"], ["script"]):
            self.texts.append(data)


def capture(folder: Path, only: str, checkout: Path, shared: Path) -> None:
    """Run each command whose name matches `only` with the Flatout of `checkout`, and keep its output in `folder`."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "COLUMNS": "160",
        "NO_COLOR": "1",
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": str(checkout.absolute() / "src"),
    }
    for name, arguments in commands(shared.absolute()):
        if not re.search(only, name):
            continue
        with tempfile.TemporaryDirectory() as cwd:
            done = subprocess.run(
                [sys.executable, "-m", "flatout", *shlex.split(arguments)],
                cwd=cwd,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            page = Path(cwd) / "page.html"
            if page.exists():
                shutil.copy(page, folder / f"{name}.html")
        (folder / f"{name}.out").write_text(done.stdout)
        (folder / f"{name}.err").write_text(done.stderr)
        (folder / f"{name}.code").write_text(str(done.returncode))
    shutil.rmtree(folder / "state", ignore_errors=True)


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Yield each difference between two JSON values that is not of wording alone."""
    if type(before) is not type(after):
        yield f"{where}: {before!r} became {after!r}"
    elif isinstance(before, dict):
        for key in before.keys() | after.keys():
            if key in UNSTABLE_KEYS:
                continue
            if key not in before or key not in after:
                yield f"{where}.{key}: {'removed' if key in before else 'added'}"
            else:
                yield from differences(before[key], after[key], f"{where}.{key}")
    elif (
        isinstance(before, list) and before and all(isinstance(item, dict) and "id" in item for item in before + after)
    ):
        yield from differences(*({item["id"]: item for item in items} for items in (before, after)), where=where)
    elif isinstance(before, list):
        if len(before) != len(after):
            yield f"{where}: {len(before)} items became {len(after)}"
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{where}[{number}]")
    elif isinstance(before, str) and " " in before:
        if NUMBER.findall(before) != NUMBER.findall(after):
            yield f"{where}: the numbers of {before!r} became those of {after!r}"
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def text_differences(before: str, after: str) -> Iterator[str]:
    """Yield one line if two texts differ in numbers. Lines with a path or with a duration of this run are skipped."""
    numbers = [
        [number for line in text.splitlines() if not UNSTABLE_LINE.search(line) for number in NUMBER.findall(line)]
        for text in (before, after)
    ]
    if numbers[0] != numbers[1]:
        removed = [number for number in numbers[0] if number not in numbers[1]]
        added = [number for number in numbers[1] if number not in numbers[0]]
        yield f"{len(numbers[0])} numbers became {len(numbers[1])}; removed {removed[:8]}, added {added[:8]}"


def compare(before: Path, after: Path) -> int:
    """Print the differences between the captures that both folders hold. Return the number of outputs that differ."""
    num_different = num_compared = num_reworded = 0
    for path in sorted(after.iterdir()):
        old = before / path.name
        if not old.exists():
            continue
        num_compared += 1
        one, other = old.read_text(), path.read_text()
        if one == other:
            continue
        num_reworded += 1
        if path.suffix == ".out" and one.startswith("{") and other.startswith("{"):
            found = list(differences(json.loads(one), json.loads(other)))
        elif path.suffix == ".html":
            pages = []
            for text in (one, other):
                page = _Elements()
                page.feed(text)
                pages.append(page)
            found = list(text_differences("\n".join(pages[0].texts), "\n".join(pages[1].texts)))
            if pages[0].tags != pages[1].tags:
                found.append(f"{len(pages[0].tags)} elements became {len(pages[1].tags)}, or others")
        else:
            found = list(text_differences(one, other))
        if found:
            num_different += 1
            print(path.name)
            for line in found[:12]:
                print(f"    {line}")
    print(f"{num_compared} outputs compared: {num_reworded} differ, {num_different} of them in more than words")
    return num_different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    capturing = verbs.add_parser("capture")
    capturing.add_argument("folder", type=Path)
    capturing.add_argument("--only", default="", metavar="REGEX", help="only commands whose name matches")
    capturing.add_argument("--checkout", type=Path, default=ROOT, metavar="FOLDER", help="the Flatout that is run")
    capturing.add_argument("--data", type=Path, default=SHARED, metavar="FOLDER", help="public data")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "capture":
        capture(arguments.folder, arguments.only, arguments.checkout, arguments.data)
        return 0
    return 1 if compare(arguments.before, arguments.after) else 0


if __name__ == "__main__":
    sys.exit(main())
