"""The protocol: its names are spelled once in the source, and are those that recordings and jobs of today have."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.syntax import nodes

import flatout
from flatout.inside import protocol
from flatout.inside.protocol import File, FileName, Variable, complete_name, partial_name, process_name

PACKAGE = Path(flatout.__file__).parent
PROTOCOL = Path(protocol.__file__)

# How the protocol's names look in a string. The part that differs is a `{}` of an f-string, which is `*` here, a `*` of
# a glob, or something of a regular expression, without its backslashes.
NAMES = [
    r"FLATOUT_[A-Z]",
    r"\brecording\.json",
    r"\bhost-\S*\.(json|samples)",
    r"\brank\S*\.(steps|json)",
    r"\.(steps|samples)\.jsonl",
    r"\b(facts|gradients|data-check)-rank",
    r"\b(failure|patches|compression|diverted|inside|flight)-\S*\.(json|jsonl|log)\b",
    r"(^|/)(failure|patches|diverted|processes|beat|stacks|flight)-(\*|$)",
    r"^flight-request$",
    r"(^|/)\.(state|began|previous|checksums)(/|$)",
    r"(^|/)attempts/",
    r"^\.\*\.part$",
]


# Files of the same kind of name that are no part of the protocol: those in the folder of a checkpoint.
OTHERS = {("checkpoint/store.py", r"\brank\S*\.(steps|json)")}


def strings(source: str) -> Iterator[str]:
    """Each string in `source` that is not a docstring; `*` stands for what an f-string puts in."""
    skipped: set[int] = set()  # walked through from the outside in: a module before its docstring
    for node in nodes(source):
        match node:
            case (
                ast.Module(body=[ast.Expr(value=docstring), *_])
                | ast.ClassDef(body=[ast.Expr(value=docstring), *_])
                | ast.FunctionDef(body=[ast.Expr(value=docstring), *_])
            ):
                skipped.add(id(docstring))
            case ast.JoinedStr(values=parts):
                skipped.update(map(id, parts))
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
            case ast.Constant(value=str(text)) if id(node) not in skipped:
                yield text
            case ast.Constant(value=bytes(data)):
                yield data.decode(errors="replace")


def spelled(source: str, file: str = "") -> list[str]:
    """The strings in `source` that spell a name of the protocol."""
    names = re.compile("|".join(name for name in NAMES if (file, name) not in OTHERS))
    return [text for text in strings(source) if names.search(text.replace("\\", ""))]


def test_no_name_of_the_protocol_is_spelled_elsewhere() -> None:
    files = {path: str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py")) if path != PROTOCOL}
    assert [(name, text) for path, name in files.items() for text in spelled(path.read_text(), name)] == []


@pytest.mark.parametrize(
    "source",
    [
        'environment.get("FLATOUT_HEARTBEAT")',
        'f"FLATOUT_RECORDING={path}"',
        'say("run it again with FLATOUT_DEBUG=1")',
        'environment[b"FLATOUT_JOB"]',
        'path / f"rank{rank}.steps.jsonl"',
        'path.glob("rank*.json")',
        r're.compile(r"rank\d+\.steps\.jsonl")',
        r're.fullmatch(r"host-.+\.json", name)',
        'path / f"host-{name}.samples.jsonl"',
        'f"facts-rank{rank}.json"',
        'f"failure-{host}-{pid}.json"',
        'folder.glob("beat-*")',
        'name.removeprefix("beat-")',
        'folder / f"stacks-{name}"',
        'path / ".state"',
        'path.glob("attempts/*")',
        'f"{path}/attempts/{number}"',
        'path.with_name(f".{path.name}.part")',
        'name + ".previous"',
        'say("see the inside-*.log of its host")',
    ],
)
def test_a_name_of_the_protocol_is_found(source: str) -> None:
    assert len(spelled(source)) == 1


def test_docstrings_may_name_it() -> None:
    assert spelled('"""In: FLATOUT_JOB."""\ndef f():\n    """Out: rank0.steps.jsonl."""\n    return "host-bound"') == []


def test_the_variables_are_those_that_users_and_jobs_know() -> None:
    names = {value for name, value in vars(Variable).items() if not name.startswith("_")}
    assert names == {
        "FLATOUT_RECORDING",
        "FLATOUT_STEPS",
        "FLATOUT_WARMUP",
        "FLATOUT_LIGHT",
        "FLATOUT_FACTS",
        "FLATOUT_LOADER_STAGES",
        "FLATOUT_FLOPS",
        "FLATOUT_GRADIENTS",
        "FLATOUT_DATA_CHECK",
        "FLATOUT_STOP_AFTER",
        "FLATOUT_STOP_AFTER_S",
        "FLATOUT_STOP_RULE",
        "FLATOUT_XLA_TRIAL",
        "FLATOUT_OTHER_SAMPLES",
        "FLATOUT_OTHER_ROUNDING",
        "FLATOUT_SEED",
        "FLATOUT_BLOCKS",
        "FLATOUT_PATCHES",
        "FLATOUT_COMPRESS",
        "FLATOUT_REPORTS",
        "FLATOUT_DIVERT",
        "FLATOUT_APART",
        "FLATOUT_EARLIER",
        "FLATOUT_DATA_CACHE",
        "FLATOUT_PACKED",
        "FLATOUT_SAFE_SAVE",
        "FLATOUT_SAVES",
        "FLATOUT_NCCL_TABLE",
        "FLATOUT_NCCL_TABLE_COMPARED",
        "FLATOUT_HEARTBEAT",
        "FLATOUT_CHECKPOINT_EVERY_S",
        "FLATOUT_JOB",
        "FLATOUT_TUNING",
        "FLATOUT_OVERLAY",
        "FLATOUT_REDFISH_USER",
        "FLATOUT_REDFISH_PASSWORD",
        "FLATOUT_DEBUG",
    }


PROCESS = process_name("node-1", 42)


@pytest.mark.parametrize(
    ("kind", "part", "name"),
    [
        (File.HOST, "node-1", "host-node-1.json"),
        (File.SAMPLES, "node-1", "host-node-1.samples.jsonl"),
        (File.STORAGE, "node-1", "host-node-1.storage.jsonl"),
        (File.STEPS, 3, "rank3.steps.jsonl"),
        (File.TRACE, 3, "rank3.json"),
        (File.PACKED_TRACE, 3, "rank3.json.gz"),
        (File.FACTS, 3, "facts-rank3.json"),
        (File.GRADIENTS, 3, "gradients-rank3.json"),
        (File.DATA_CHECK, 3, "data-check-rank3.json"),
        (File.FAILURE, PROCESS, "failure-node-1-42.json"),
        (File.PATCHES, PROCESS, "patches-node-1-42.jsonl"),
        (File.DIVERTED, PROCESS, "diverted-node-1-42.jsonl"),
        (File.LOG, "node-1", "inside-node-1.log"),
        (File.PROCESSES, "node-1", "processes-node-1"),
        (File.HEARTBEAT, PROCESS, "beat-node-1-42"),
        (File.STACKS, PROCESS, "stacks-node-1-42"),
        (File.FLIGHT, PROCESS, "flight-node-1-42.json"),
        (File.PREVIOUS, "last.pt", "last.pt.previous"),
        (File.CHECKSUMS, "last.pt", "last.pt.checksums"),
    ],
)
def test_the_files_are_named_as_those_of_today(kind: FileName, part: object, name: str, tmp_path: Path) -> None:
    assert kind.of(part) == name
    assert kind.part(name) == str(part)
    (tmp_path / name).touch()
    assert [path.name for path in tmp_path.glob(kind.glob)] == [name]
    assert complete_name(partial_name(name)) == name == complete_name(name)
    assert partial_name(name) == f".{name}.part"


def test_the_fixed_names_are_those_of_today() -> None:
    assert (File.RECORDING, File.ATTEMPTS, File.STATE) == ("recording.json", "attempts", ".state")
    assert (File.FLIGHT_REQUEST, File.TRIAL_BEGAN) == ("flight-request", ".began")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (File.TRACE, "rank.json"),
        (File.TRACE, "rankless.json"),
        (File.TRACE, "rank3.json.gz"),
        (File.TRACE, ".rank3.json.part"),
        (File.STEPS, "rank3.json"),
        (File.FACTS, "rank3.json"),
        (FileName("ab", "bc"), "abc"),
    ],
)
def test_a_name_of_another_kind_has_no_rank(kind: FileName, name: str) -> None:
    assert kind.rank(name) is None


def test_the_heartbeat_has_the_fields_of_today_in_order() -> None:
    """A job that runs with the Flatout of before an update is watched by the one after it."""
    fields = "change rank world_size num_events num_steps base_step has_loaded phase phase_since first_step_end"
    fields += " last_step_end num_checkpoints checkpoint_step main_thread gives_stacks has_ended has_gpu gpu exchange"
    fields += " spent spent_at_first spent_at_last longest num_groups sequence buckets"
    fields += " fine_buckets recent recent_data recent_away"  # at the end: an older Flatout reads those before them
    fields += " loader loaded loaded_values"
    assert [name for name, _ in protocol.HEARTBEAT_FIELDS] == fields.split()
    assert sum(count for _, count in protocol.HEARTBEAT_FIELDS) * 8 <= 8192
    assert protocol.HEARTBEAT_PHASES == ("compute", "data", "checkpoint", "evaluation")


def test_it_imports_nothing_and_is_read_by_old_pythons() -> None:
    tree = ast.parse(PROTOCOL.read_text(), feature_version=(3, 6))
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    program = f"import sys; sys.path[:] = [{str(PROTOCOL.parent)!r}]; before = set(sys.modules); import protocol;"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program + "print(sorted(set(sys.modules) - before))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['protocol']"
