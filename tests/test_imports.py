"""The room rule: a stage is functions from records to records and imports no other stage; and no cycle of imports.

Both are read from the source with `ast`: imports inside functions, under TYPE_CHECKING and by `import_module` count
like those at the top of a file. `source_imports` says what is seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.source_imports import RELATIVE, UNKNOWN, cycles, import_graph, imported_modules

import flatout

PACKAGE = Path(flatout.__file__).parent

NOUNS = {"errors", "units", "secrets", "input_files", "input_records", "service_answers", "records", "catalog"}
# Five rooms that several stages use, and by whom.
SHARED = {
    "predict": {"diagnose", "plan", "schedule"},
    "change": {"trial", "emit"},
    "step_log": {"profile"},
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
        "placement",
        "plan",
        "profile",
        "trial",
        "verdict",
        "emit",
        "keep",
        "cost",
        "track",
        "loading",
        "storage",
        "report",
    ),
    *SHARED,
}
COMPOSERS = {
    "api",
    "callbacks",
    "bench_pipeline",
    "compare",
    "compress",
    "conditions",
    "cost_pipeline",
    "diagnosis_pipeline",
    "recorded_job_pipeline",
    "doctor_pipeline",
    "index_pipeline",
    "loading_pipeline",
    "training_log_pipeline",
    "nccl_tuner",
    "packing",
    "plan_pipeline",
    "power_sweep_pipeline",
    "rank_executor",
    "run",
    "run_trackers",
    "schedule",
    "serving",
    "share_pipeline",
    "staging",
    "storage_pipeline",
    "submit",
    "testing",
    "tune",
    "watch",
    "xla_tuner",
}
EVERYTHING = NOUNS | STAGES | COMPOSERS

# Room -> the rooms that it may import besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "units": set(),
    "secrets": set(),
    "sample_order": set(),
    "input_files": set(),
    "service_answers": set(),
    "input_records": {"errors", "input_files"},
    "records": {"errors", "units"},
    "catalog": {"errors", "units", "input_files", "input_records", "records"},
    **{stage: NOUNS | {room for room, users in SHARED.items() if stage in users} for stage in STAGES},
    **dict.fromkeys(COMPOSERS, EVERYTHING),
    "inside": {"sample_order", "secrets"},
    "checkpoint": {"errors", "sample_order", "secrets"},
    "cli": EVERYTHING,
    "__main__": {"cli"},
    "__init__": set(),
}
ROOMS_THAT_RUN_IN_THE_USERS_PROCESS = {"inside", "checkpoint", "sample_order", "secrets"}
PROTOCOL = "inside.protocol"  # the one module of `inside` that every other room may import; it imports nothing
# What these rooms use besides the standard library and torch, by module.
MAY_ALSO_USE = {
    "checkpoint.values": {"numpy"},  # only a job that has values of numpy saves or reads any
    # Packages of the user's own environment, without which the patch says so and does nothing.
    "inside.patches.low_precision": {"torchao", "transformer_engine"},
    "inside.patches.fused_kernels": {"liger_kernel", "xformers"},
    "inside.patches.onnx_export": {"onnxruntime"},
    "inside.patches.other_optimizers": {"bitsandbytes", "torchao"},
    # Variants of `flatout compress` that are named after what they use, and not applied without it.
    "inside.compression.onnx_session": {"onnx", "onnxruntime"},
    "inside.compression.onnx_int8": {"onnxruntime"},
    "inside.compression.torchao_layers": {"torchao"},
    "inside.compression.bitsandbytes_layers": {"bitsandbytes"},
}


def violations(module: str, source: str) -> list[str]:
    """What in `source`, the text of the module `flatout.<module>`, breaks the room rule; one line each."""
    room = module.split(".")[0]
    if room not in MAY_IMPORT:
        return [f"flatout.{module}: the room `{room}` is not in the room rule"]
    broken = []
    for line, imported in imported_modules(f"flatout.{module}", source):
        problem = _problem(module, room, imported)
        if problem is not None:
            broken.append(f"flatout.{module}:{line}: {problem}")
    return broken


def _problem(module: str, room: str, imported: str) -> str | None:
    if imported == RELATIVE:
        return "a relative import"
    top, _, rest = imported.partition(".")
    other = rest.split(".")[0]
    if module == PROTOCOL:
        return f"{PROTOCOL} may import nothing"
    if UNKNOWN in top or (top == "flatout" and UNKNOWN in other):
        return "an import of a module whose room this file does not spell"
    if rest == PROTOCOL or rest.startswith(f"{PROTOCOL}."):
        return None
    if top == "flatout":
        return None if other in {"", "__version__", room} | MAY_IMPORT[room] else f"{room} may not import {other}"
    if room not in ROOMS_THAT_RUN_IN_THE_USERS_PROCESS:
        return None
    if top in {*sys.stdlib_module_names, "torch", *MAY_ALSO_USE.get(module, ())}:
        return None
    return f"{room} may use only the standard library and torch, not {top}"


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
        ("read.kineto", "import_module(name='flatout.attribute')", "read may not import attribute"),
        ("read.kineto", "__import__('flatout.attribute')", "read may not import attribute"),
        ("read.kineto", "NAME = 'flatout.attribute'\nimport_module(NAME)", "read may not import attribute"),
        ("read.kineto", "import_module(f'flatout.attribute.{part}')", "read may not import attribute"),
        ("read.kineto", "import_module('flatout.' + 'attribute')", "read may not import attribute"),
        (
            "read.kineto",
            "for name in ('json', 'flatout.attribute'):\n    import_module(name)",
            "read may not import attribute",
        ),
        (
            "read.kineto",
            "PARTS = {'a': 'attribute', 'b': 'records'}\nimport_module(f'flatout.{PARTS[key]}')",
            "read may not import attribute",
        ),
        ("read.kineto", "def f(name):\n    import_module(name)", "whose room this file does not spell"),
        ("read.kineto", "import_module(f'flatout.{room}')", "whose room this file does not spell"),
        ("read.kineto", "import_module('flatout.' + room + '.kineto')", "whose room this file does not spell"),
        ("read.kineto", "from importlib import import_module as load", "whose room this file does not spell"),
        ("read.kineto", "load = importlib.import_module", "whose room this file does not spell"),
        ("read.kineto", "import_module('.attribute', 'flatout')", "a relative import"),
        ("read.kineto", "name = 'flatout.read'\nname = name + x\nimport_module(name)", "file does not spell"),
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
        (
            "checkpoint.store",
            "_NUMPY = 'numpy'\nimport_module(_NUMPY)",
            "checkpoint may use only the standard library and torch, not numpy",
        ),
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
    assert len(broken := violations(module, source)) == 1
    assert broken[0].endswith(what)


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
        ("inside.hook", "import_module('flatout.inside.' + name)"),
        ("inside.hook", "def f():\n    for n in ('json', 're'):\n        import_module(n)\ndef g(n):\n    print(n)"),
        ("cli", "for _verb in ('plan', 'cost'):\n    import_module(f'flatout.cli.{_verb}')"),
    ],
)
def test_what_is_allowed_is_not_found(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_no_modules_import_each_other() -> None:
    """No cycle of imports in all of Flatout, at whatever depth of the code an import stands.

    An import of `a.b.c` counts as one of `a` and of `a.b` too, as Python runs these first.
    """
    sources = {f"flatout.{name}": path.read_text() for name, path in modules().items() if name != "__init__"}
    sources["flatout"] = (PACKAGE / "__init__.py").read_text()
    assert cycles(import_graph(sources)) == []


@pytest.mark.parametrize(
    "back",
    [
        "from pack import one",
        "import pack.one",
        "from pack.one import name",
        "def f():\n    from pack.one import name",
        "if TYPE_CHECKING:\n    from pack.one import name",
        "import_module('pack.one')",
        "import_module(f'pack.{name}')",
        "TABLE = {'x': 'pack.one'}\nimport_module(TABLE[key])",
        "import_module(f'{__package__}.one')",
    ],
)
def test_a_cycle_is_found_wherever_its_imports_stand(back: str) -> None:
    sources = {
        "pack": "",
        "pack.one": "from pack.two import other",
        "pack.two": "from pack import three",
        "pack.three": back,
        "four": "from pack import one, two, three",
    }
    assert cycles(import_graph(sources)) == [["pack.one", "pack.three", "pack.two"]]


def test_a_cycle_through_a_package_is_found() -> None:
    sources = {"a": "from b.part import x", "b": "from a import y", "b.part": ""}
    assert cycles(import_graph(sources)) == [["a", "b"]]


def test_a_package_may_import_its_own_modules() -> None:
    sources = {"pack": "from pack.one import name", "pack.one": "import pack.two", "pack.two": ""}
    assert cycles(import_graph(sources)) == []


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
