"""The room rule: a stage is functions from records to records and imports no other stage.

The rule is read from the source with `ast`, so imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import flatout

PACKAGE = Path(flatout.__file__).parent

NOUNS = {"errors", "units", "secrets", "records", "catalog"}
# Four rooms that several stages use, and by whom.
SHARED = {
    "predict": {"diagnose", "plan", "schedule"},
    "change": {"trial", "emit"},
    "launch": {"profile", "trial", "keep", "schedule"},
    "checkpoint": {"keep"},
}
STAGES = {
    *(
        "probe",
        "read",
        "attribute",
        "diagnose",
        "doctor",
        "plan",
        "profile",
        "trial",
        "verdict",
        "emit",
        "keep",
        "cost",
        "report",
    ),
    *SHARED,
}
COMPOSERS = {"diagnosis_pipeline", "rank_executor", "tune", "watch", "schedule", "submit", "testing"}
EVERYTHING = NOUNS | STAGES | COMPOSERS

# Room -> the rooms that it may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "secrets": set(),
    "records": {"errors", "units"},
    "catalog": {"errors", "units", "records"},
    **{stage: NOUNS | {room for room, users in SHARED.items() if stage in users} for stage in STAGES},
    **dict.fromkeys(COMPOSERS, EVERYTHING),
    "inside": set(),
    "checkpoint": {"errors"},
    "cli": EVERYTHING,
    "__main__": {"cli"},
    "__init__": set(),
}
ROOMS_THAT_RUN_IN_THE_USERS_PROCESS = {"inside", "checkpoint"}
PROTOCOL = "inside.protocol"  # the one module of `inside` that every other room may import; it imports nothing


def violations(module: str, source: str) -> list[str]:
    """What in `source`, the text of the module `flatout.<module>`, breaks the room rule; one line each."""
    room = module.split(".")[0]
    if room not in MAY_IMPORT:
        return [f"flatout.{module}: the room `{room}` is not in the room rule"]
    found = []
    for line, imported in imported_modules(ast.parse(source)):
        top, _, rest = imported.partition(".")
        if top == "":
            found.append(f"flatout.{module}:{line}: a relative import")
        elif module == PROTOCOL:
            found.append(f"flatout.{module}:{line}: {PROTOCOL} may import nothing")
        elif top != "flatout":
            if room in ROOMS_THAT_RUN_IN_THE_USERS_PROCESS and top not in {*sys.stdlib_module_names, "torch"}:
                found.append(f"flatout.{module}:{line}: {room} may use only the standard library and torch, not {top}")
        elif rest == PROTOCOL or rest.startswith(f"{PROTOCOL}."):
            continue
        elif (other := rest.split(".")[0]) not in {"", "__version__", room} | MAY_IMPORT[room]:
            found.append(f"flatout.{module}:{line}: {room} may not import {other}")
    return found


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each module that `tree` imports, by statement or by a call with its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(level=level, module=name, names=names):
                if level or name is None:
                    yield node.lineno, ""
                else:  # `from flatout import read` imports flatout.read
                    yield from ((node.lineno, f"{name}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ):
                if called in {"import_module", "__import__"}:
                    yield node.lineno, name


def modules() -> dict[str, Path]:
    """Every module of Flatout by its dotted name below `flatout`."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_every_module_keeps_the_room_rule() -> None:
    assert [line for name, path in modules().items() for line in violations(name, path.read_text())] == []


@pytest.mark.parametrize(
    ("module", "source", "what"),
    [
        ("read.kineto", "from flatout.attribute import parts", "read may not import attribute"),
        ("read.kineto", "import flatout.report.text as text", "read may not import report"),
        ("read.kineto", "def f():\n    from flatout import cli", "read may not import cli"),
        (
            "read.kineto",
            "if TYPE_CHECKING:\n    from flatout.diagnosis_pipeline import diagnose",
            "read may not import diagnosis_pipeline",
        ),
        ("read.kineto", "import_module('flatout.attribute')", "read may not import attribute"),
        ("read.kineto", "importlib.import_module('flatout.attribute')", "read may not import attribute"),
        ("read.kineto", "from . import archive", "a relative import"),
        ("read.kineto", "from ..attribute import parts", "a relative import"),
        ("records.events", "from flatout.catalog import gpus", "records may not import catalog"),
        ("catalog.gpus", "from flatout.read import read_trace", "catalog may not import read"),
        ("errors", "from flatout.units import seconds", "errors may not import units"),
        ("report.text", "from flatout.predict import replay", "report may not import predict"),
        ("predict.replay", "from flatout.change import knobs", "predict may not import change"),
        ("plan.search", "from flatout.launch import local", "plan may not import launch"),
        ("rank_executor", "from flatout.cli import main", "rank_executor may not import cli"),
        ("inside.hook", "from flatout.records import events", "inside may not import records"),
        ("inside.hook", "import numpy as np", "inside may use only the standard library and torch, not numpy"),
        ("checkpoint.store", "import numpy", "checkpoint may use only the standard library and torch, not numpy"),
        ("checkpoint.store", "from flatout.records import events", "checkpoint may not import records"),
        ("keep.beats", "from flatout.inside.liveness.beat import Beat", "keep may not import inside"),
        ("keep.beats", "from flatout.inside import beat", "keep may not import inside"),
        ("keep.beats", "from flatout.inside.protocols import File", "keep may not import inside"),
        ("checkpoint.store", "from flatout.inside.log import LOG", "checkpoint may not import inside"),
        ("inside.protocol", "from flatout.inside.log import LOG", "inside.protocol may import nothing"),
        ("inside.protocol", "import os", "inside.protocol may import nothing"),
        ("helpers.text", "", "the room `helpers` is not in the room rule"),
    ],
)
def test_a_violation_is_found(module: str, source: str, what: str) -> None:
    assert len(found := violations(module, source)) == 1
    assert found[0].endswith(what)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("read.kineto", "from flatout import __version__\nfrom flatout.records.events import Kind"),
        ("read.kineto", "from flatout.read import archive\nimport numpy as np"),
        ("attribute.parts", "from flatout.errors import InputError\nfrom flatout.units import NS_PER_S"),
        ("diagnose.rules.straggler", "from flatout.catalog import gpu_facts\nfrom flatout.predict import replay"),
        ("rank_executor", "from flatout import attribute, read"),
        ("cli.diagnose", "def diagnose():\n    from flatout.diagnosis_pipeline import diagnose"),
        ("testing.builder", "from flatout.read import read_trace"),
        ("inside.hook", "import json\nimport torch.distributed\nfrom flatout.inside import clock"),
        ("keep.beats", "from flatout.inside.protocol import File, Variable"),
        ("checkpoint.store", "from flatout.inside import protocol"),
    ],
)
def test_what_is_allowed_is_not_found(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_every_room_that_exists_has_a_module() -> None:
    folders = {
        path.name
        for path in PACKAGE.iterdir()
        if path.is_dir() and path.name.isidentifier() and path.name != "__pycache__"
    }
    assert {folder for folder in folders if not list((PACKAGE / folder).rglob("*.py"))} == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_quick_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import json, sys\n"
        "from flatout.cli import main\n"
        f"sys.argv = ['flatout', *{arguments!r}]\n"
        "assert main() == 0\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stderr))
    assert "typer" in loaded
    assert loaded & {"numpy", "scipy", "jinja2", "msgspec", "rich", "pydantic", "torch", "ray"} == set()
