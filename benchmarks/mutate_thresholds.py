"""Which wrong thresholds the tests notice: each number that decides is changed, and the tests of its room are run.

    python benchmarks/mutate_thresholds.py [ROOM...] [--only TEXT] [--list] [--out FILE]

In: the sources of `ROOMS`. A number decides if it is in a constant of a module or a class, in a default argument, in a
comparison, or in the arguments of `min` and `max`; it is tripled and divided by three, or, of a small integer, one is
added and taken away. Out: a line for each mutant, with the test that failed, or SURVIVED, or NOT TRIED if no test could
be collected; the exit code is 1 if any survived that is not in `EQUIVALENT`, where the reason is.

Third-party packages are imported once; each mutant then is a forked process that imports Flatout with the changed
source and runs the tests in itself, until the first one fails: first the tests named after the source, then the quick
ones. Tests that start processes would not see the mutant: none of these rooms has any. The sources on the disk are
never changed.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "flatout"
DURATIONS = ROOT / "tests" / "durations.json"
# Room -> patterns of its sources, and its tests.
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "verdict": (("verdict/*.py",), ("tests/verdict",)),
    "trial": (("trial/*.py",), ("tests/trial",)),
    "blame": (("attribute/blame.py",), ("tests/attribute/test_blame.py", "tests/attribute/test_job.py")),
    "hang": (("keep/hang_judge.py", "keep/hang_timeout.py"), ("tests/keep/test_hang.py",)),
    "rules": (
        ("diagnose/rules/*.py", "diagnose/finding.py"),
        ("tests/diagnose/rules", "tests/diagnose/test_rules.py"),
    ),
}
# (Part of the line, number) -> why no test can tell, or none should.
EQUIVALENT: dict[tuple[str, str], str] = {
    ("UNDECIDED, BETTER, WORSE, EQUIVALENT = ", "1"): "codes that only must differ",
    ("UNDECIDED, BETTER, WORSE, EQUIVALENT = ", "2"): "codes that only must differ",
    ("MAX_LOOK_BACK = ", "512"): "a bound on the time of a search; further back there is no step in common",
    ("len(stages) < 2", "2"): "a pipeline has two stages or more",
    ("if len(losses) > 2", "2"): "the deviation of one or two differences says nothing either way",
    ("_SHOWN = ", "3"): "how many files a sentence names",
    ("if s > 1e-9", "1e-9"): "a nanosecond is the resolution of a trace",
    ("MIN_SYNCS_TOLD = ", "5"): "whether a title counts the calls",
    ("if passes < 2", "2"): "of one pass none is needless",
    ("_MOST_LISTED = ", "16"): "how many ranks the evidence lists before it gives their maximum",
    ("MOST_RANKS_LISTED = ", "16"): "how many ranks the evidence lists before it gives one number",
    ("MAX_ADVICE = ", "6"): "how many changes a finding lists",
    ("NUM_EXAMPLES = ", "8"): "how many first steps the evidence lists",
    ("_TRY_TIMEOUT_S = ", "20.0"): "a bound on the time of a program that hangs",
    ("if each.exposed_s > 1e-9", "1e-9"): "a nanosecond is the resolution of a trace",
    ("len(context.ranks) < 2 or not context.num_steps", "2"): "one rank is as heavy as itself",
    ("MAX_FILES = 50_000", "50_000"): "a bound on the time of a search, at whose end the report says so",
    ("MAX_READ_S = ", "2.0"): "a bound on the time of a search, at whose end the report says so",
    ("_MAX_HEADING_BYTES = ", "1"): "a bound on memory: headings have kilobytes",
    ("_MAX_HEADING_BYTES = ", "20"): "a bound on memory: headings have kilobytes",
    ("_TAIL_BYTES = ", "200_000"): "a bound on memory: how much of a log's end is read",
    ("MOST_PAUSED = ", "0.5"): "more than half of the steps cannot lie above their median",
    ("NUM_SPREADS, NUM_EFFECTS = ", "200"): "the precision of a simulation, at the cost of its time",
    ("NUM_SIMULATED = ", "500"): "the precision of a simulation, at the cost of its time",
    ("NUM_SIMULATED = ", "2000"): "the precision of a simulation, at the cost of its time",
    ("NUM_SPREADS, NUM_EFFECTS = ", "12"): "more spreads: the precision of a sum, at the cost of its time",
    ("_GRID_STEP = ", "2.0"): "the precision of an interpolation, at the cost of its time",
    ("_PRIOR_STEPS = ", "1e-3"): "a small number: it only tells works apart that always come together",
    ("NO_SHARED_ERROR = ", "1"): "an error of 0, of whatever precision, adds nothing",
    ("CERTAIN = ", "40.0"): "a shortcut: above it the simulation gives the plain mean, too",
}
WARM = ("numpy", "scipy.special", "msgspec", "psutil", "hypothesis", "xdist")
# Tests may ask for warnings of their own, so that plugin stays; it would end pytest because `WARM` is imported.
OPTIONS = ("-x", "-q", "-n0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
FACTOR = 3
SMALL_INTEGER = 10  # below it, one more and one less
DECIDING_CALLS = {"max", "min", "maximum", "minimum", "clip"}
MOST_MORE_S = 60.0  # a mutant whose tests take this much longer than without it is killed by that
MEMORY_BYTES = 8 << 30  # so that a mutant without an end fails before the machine's memory is full
COLLECTING = "collecting"


class Mutant(NamedTuple):
    path: Path
    line: int
    source: str  # the line, stripped
    was: str
    becomes: str
    text: str  # of the whole mutated file

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(SOURCES)}:{self.line} {self.was} -> {self.becomes}"


class Outcome(NamedTuple):
    is_killed: bool
    by: str  # the test that failed first
    seconds: float
    problem: str = ""  # why no test ran: the outcome says nothing about the tests


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _deciding_numbers(ast.parse(text)):
        assert node.end_col_offset is not None
        assert node.end_lineno is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        data = text.encode()
        was = data[begin:end].decode()
        for becomes in _other_values(node.value):
            mutated = data[:begin] + becomes.encode() + data[end:]
            yield Mutant(path, node.lineno, lines[node.lineno - 1].strip(), was, becomes, mutated.decode())


def _deciding_numbers(tree: ast.Module) -> Iterator[ast.Constant]:
    def visit(node: ast.AST, *, is_deciding: bool, is_constant: bool) -> Iterator[ast.Constant]:
        if isinstance(node, ast.Constant):
            if is_deciding and _is_threshold(node.value, is_constant=is_constant):
                yield node
            return
        if isinstance(node, ast.JoinedStr | ast.Subscript | ast.Slice):
            return
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from visit(default, is_deciding=True, is_constant=True)
            for statement in node.body if isinstance(node, ast.FunctionDef) else [node.body]:
                yield from visit(statement, is_deciding=False, is_constant=False)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from visit(node.value, is_deciding=is_deciding, is_constant=is_constant)
            return
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            yield from visit(node.left, is_deciding=is_deciding, is_constant=is_constant)
            return
        is_deciding = is_deciding or isinstance(node, ast.Compare) or _is_deciding_call(node)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, is_deciding=is_deciding, is_constant=is_constant)

    yield from sorted(
        visit(tree, is_deciding=True, is_constant=True), key=lambda number: (number.lineno, number.col_offset)
    )


def _is_deciding_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name in DECIDING_CALLS


def _is_threshold(value: object, *, is_constant: bool) -> bool:
    """Numbers that a choice was made about: no bounds against a division by zero, no units, no empty sequences."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
        return False
    if is_constant:
        return True
    return value not in (1, 1e3, 1e6, 1e9) and value >= 1e-9


def _other_values(value: object) -> tuple[str, ...]:
    if isinstance(value, int) and value < SMALL_INTEGER:
        return (str(value + 1), str(value - 1))
    if isinstance(value, int):
        return (str(value * FACTOR), str(value // FACTOR))
    assert isinstance(value, float)
    if 0.7 < value < 1.5 and value != 1.0:  # near 1 it is the distance from 1 that decides
        return (repr(round(1 + FACTOR * (value - 1), 9)), repr(round(1 + (value - 1) / FACTOR, 9)))
    return (repr(value * FACTOR), repr(value / FACTOR))


class _MutatedLoader(SourceFileLoader):
    def __init__(self, fullname: str, mutant: Mutant) -> None:
        super().__init__(fullname, str(mutant.path))
        self._text = mutant.text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._text, self.path)  # type: ignore[arg-type]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module of Flatout, and loads it from the mutated source."""

    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.relative_to(SOURCES.parent).with_suffix("").parts
        self._module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self._mutant = mutant

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._mutant.path, loader=_MutatedLoader(fullname, self._mutant)
        )


class _LikelyFirst:
    """A plugin of pytest that runs the tests named after the mutant's source first, and then the quick ones."""

    def __init__(self, mutant: Mutant | None) -> None:
        self._name = "" if mutant is None else f"test_{mutant.path.stem}.py"
        self._durations: dict[str, float] = json.loads(DURATIONS.read_text())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=self._place)

    def _place(self, item: pytest.Item) -> tuple[bool, float, str]:
        file = item.nodeid.split("::")[0]
        return Path(file).name != self._name, self._durations.get(file, 0.0), file


class _FirstFailure:
    """A plugin of pytest that writes which test failed first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._descriptor, f"{report.nodeid}\n".encode())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os.write(self._descriptor, f"{COLLECTING} {report.nodeid}\n".encode())


def run(mutant: Mutant | None, tests: tuple[str, ...], limit_s: int) -> Outcome:
    """Run the tests in a forked process, with the mutated source or with none, for up to `limit_s` seconds of CPU time.

    Wall time would take a mutant for an endless loop whenever other work keeps the cores busy.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        with tempfile.TemporaryFile() as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            if mutant is not None:
                sys.meta_path.insert(0, _Finder(mutant))
            code = pytest.main([*OPTIONS, *tests], plugins=[_LikelyFirst(mutant), _FirstFailure(writing)])
            os._exit(int(code))
    os.close(writing)
    _, wait_status, used = os.wait4(child, 0)
    status = os.waitstatus_to_exitcode(wait_status)
    with open(reading, "rb") as file:
        failures = file.read().decode().splitlines()
    seconds = used.ru_utime + used.ru_stime
    if status == 0:
        return Outcome(False, "", seconds)
    if failures and failures[0].startswith(COLLECTING):
        return Outcome(False, "", seconds, problem=failures[0])
    if failures:
        return Outcome(True, failures[0], seconds)
    if status == -signal.SIGXCPU:
        return Outcome(True, "no end", seconds)
    return Outcome(False, "", seconds, problem=f"pytest exits with {status}")


def reason_of(mutant: Mutant) -> str | None:
    """Why the mutant may survive."""
    for (part, was), reason in EQUIVALENT.items():
        if part in mutant.source and was == mutant.was:
            return reason
    return None


def key_of(entry: dict[str, object]) -> tuple[object, ...]:
    return entry["file"], entry["source"], entry["was"], entry["becomes"]


def run_room(room: str, only: str, killed: dict[tuple[object, ...], dict[str, object]]) -> list[dict[str, object]]:
    """Run the mutants of a room; of those in `killed` an earlier run said which test kills them."""
    patterns, tests = ROOMS[room]
    paths = sorted(path for pattern in patterns for path in SOURCES.glob(pattern))
    assert paths, f"no source of the room {room}"
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    whole = run(None, tests, 600)
    if whole.is_killed or whole.problem:
        sys.exit(f"error: without a mutant, the tests of {room} fail: {whole.by or whole.problem}")
    entries = []
    num_not_tried = 0
    for mutant in mutants:
        if only not in f"{mutant.name} {mutant.source}":
            continue
        entry: dict[str, object] = {
            "room": room,
            "file": str(mutant.path.relative_to(SOURCES)),
            "source": mutant.source,
            "was": mutant.was,
            "becomes": mutant.becomes,
        }
        if key_of(entry) in killed:
            entries.append(killed[key_of(entry)])
            continue
        outcome = run(mutant, tests, round(MOST_MORE_S + whole.seconds))
        if outcome.problem.startswith(COLLECTING):  # without it they are collected: it cannot even be imported
            outcome = Outcome(True, outcome.problem, outcome.seconds)
        if outcome.problem:
            num_not_tried += 1
            print(f"{mutant.name:50} {outcome.seconds:5.1f} s  NOT TRIED: {outcome.problem}", flush=True)
            continue
        reason = None if outcome.is_killed else reason_of(mutant)
        entries.append(entry | {"is_killed": outcome.is_killed, "by": outcome.by or reason})
        words = f"killed by {outcome.by}" if outcome.is_killed else f"SURVIVED: {reason or mutant.source}"
        print(f"{mutant.name:50} {outcome.seconds:5.1f} s  {words}", flush=True)
    if num_not_tried:
        print(f"error: {num_not_tried} mutants of {room} were not tried, because their tests could not be collected")
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants with it in file, line or values")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the outcomes as JSON")
    parser.add_argument("--again", type=Path, metavar="FILE", help="run only mutants that were not killed in that file")
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.list:
        paths = {path for room in options.rooms for pattern in ROOMS[room][0] for path in SOURCES.glob(pattern)}
        for mutant in (mutant for path in sorted(paths) for mutant in mutants_of(path)):
            print(f"{mutant.name:60} {mutant.source}")
        return 0
    os.environ["CI"] = "true"  # the same examples each time
    for name in WARM:
        importlib.import_module(name)
    killed = {}
    if options.again is not None:
        before = json.loads(options.again.read_text())["mutants"]
        killed = {key_of(entry): entry for entry in before if entry["is_killed"]}
    entries = [entry for room in options.rooms for entry in run_room(room, options.only, killed)]
    num_killed = sum(bool(entry["is_killed"]) for entry in entries)
    num_equivalent = sum(not entry["is_killed"] and entry["by"] is not None for entry in entries)
    num_survived = len(entries) - num_killed - num_equivalent
    print(f"{num_killed} of {len(entries)} killed, {num_equivalent} equivalent, {num_survived} survived")
    if options.out is not None:
        counts = {"num_killed": num_killed, "num_equivalent": num_equivalent, "num_survived": num_survived}
        options.out.write_text(json.dumps(counts | {"mutants": entries}, indent=1) + "\n")
    return 1 if num_survived else 0


if __name__ == "__main__":
    sys.exit(main())
