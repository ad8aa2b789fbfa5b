"""What a script that fails before `import torch`, or that has none, says of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.warm.fixture import warm_starts

import flatout

STARTUP = Path(flatout.__file__).parent / "inside" / "startup"


@pytest.fixture
def torch_is_quick() -> Iterator[None]:
    """Fork a test's processes, so that they import torch in no time. All else here is started as users start it."""
    starts = warm_starts()
    starts.put_in()
    yield
    starts.take_out()


BROKEN_TORCH = 'raise ImportError("libcudart.so.12: cannot open shared object file")\n'


def run(folder: Path, *words: str, variable: str = "FLATOUT_HEARTBEAT") -> tuple[subprocess.CompletedProcess[str], Any]:
    """The process, and what it noted; None: nothing."""
    notes = folder / "notes"
    notes.mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "RANK"))}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(STARTUP), variable: str(notes)},
    )
    found = [json.loads(path.read_text()) for path in notes.glob("failure-*.json")]
    assert len(found) <= 1
    return done, found[0] if found else None


@pytest.mark.parametrize("variable", ["FLATOUT_HEARTBEAT", "FLATOUT_RECORDING"])
@pytest.mark.parametrize(
    ("files", "kind", "line", "message"),
    [
        ({"train.py": "x = 1\nx = = 2\n"}, "SyntaxError", "train.py:2", "invalid syntax"),
        ({"train.py": "import own\n", "own.py": "\n\n(\n"}, "SyntaxError", "own.py:3", "'(' was never closed"),
        ({"train.py": "import no_such\n"}, "ModuleNotFoundError", "train.py:1", "No module named 'no_such'"),
        ({"train.py": "import json\njson.loads('{')\n"}, "JSONDecodeError", "train.py:2", "Expecting property name"),
        (
            {"train.py": "import sys\nsys.excepthook = lambda *_: print('own')\nint('x')\n"},
            "ValueError",
            "train.py:3",
            "invalid literal",
        ),
        (
            {"train.py": "import torch\n", "torch/__init__.py": BROKEN_TORCH},
            "ImportError",
            "__init__.py:1",
            "libcudart",
        ),
    ],
)
def test_an_exception_before_torch_is_noted_with_the_scripts_own_line(
    tmp_path: Path, variable: str, files: dict[str, str], kind: str, line: str, message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    done, noted = run(tmp_path, "train.py", variable=variable)
    assert (noted["exception"], noted["line"], noted["has_torch"]) == (kind, line, False)
    assert noted["message"].startswith(message) and 0 <= noted["age_s"] < 60
    shown = re.sub(
        r'  File ".*sitecustomize.py".*\n.*\n', "", done.stderr
    )  # in the import of torch, there is that line
    assert (done.returncode, done.stdout, shown) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    ("words", "code", "kind", "message"),
    [
        (["gone.py"], 2, "FileNotFoundError", "[Errno 2] No such file or directory: 'gone.py'"),
        (["-m", "no_such.train"], 1, "ModuleNotFoundError", "No module named no_such.train"),
        (["-m", "json.no_such"], 1, "ImportError", "`-m json.no_such` could not be found or imported"),
    ],
)
def test_a_script_that_is_not_there_is_named(
    tmp_path: Path, words: list[str], code: int, kind: str, message: str
) -> None:
    done, noted = run(tmp_path, *words)
    assert (done.returncode, noted["exception"], noted["message"]) == (code, kind, message)


def test_what_argparse_refuses_is_noted_without_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done, noted = run(tmp_path, "train.py", "--stepz=3")
    assert done.returncode == 2
    assert (noted["exception"], noted["message"]) == ("SystemExit", "train.py: unrecognized arguments: --stepz=3")


@pytest.mark.usefixtures("torch_is_quick")
def test_a_refusal_that_the_script_gets_over_is_no_failure_once_it_has_torch(tmp_path: Path) -> None:
    refusal = "import argparse\ntry:\n    argparse.ArgumentParser().parse_args()\nexcept SystemExit:\n    pass\n"
    (tmp_path / "train.py").write_text(f"{refusal}import os\nprint(os.listdir('notes'))\nimport torch\n")
    done, noted = run(tmp_path, "train.py", "--stepz=3")
    assert "failure-" in done.stdout and noted is None


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(3)",
        "import signal, os; os.kill(os.getpid(), signal.SIGINT)",
        "import os; os.remove('train.py')",
        "import os; os.chdir('/')",
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    one = multiprocessing.get_context('spawn').Process(target=print); one.start(); one.join()",
    ],
)
def test_an_end_that_is_no_failure_is_not_noted(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    assert run(tmp_path, "train.py")[1] is None


WARNED = "if 1 is 1: import sys\n"  # the compiler writes a warning, before a line has run
LOUD = """\
import atexit, sys
atexit.register(lambda: print("at exit", file=sys.stderr))
print("loud", file=sys.stderr)
"""
CHILD = """\
import multiprocessing, sys, torch
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=sys.exit, args=("no data",))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit('no data')\n",
        "raise SystemExit('no data')\n",
        "import sys\ntry:\n    int('x')\nexcept ValueError:\n    sys.exit(RuntimeError('no data'))\n",
        WARNED + "sys.exit('no data')\n",
        LOUD + "sys.exit('no data')\n",
        "import atexit, sys\natexit.register(int, 'x')\nsys.exit('no data')\n",
        "import sys, torch\nsys.exit('no data')\n",
        CHILD,
    ],
)
@pytest.mark.usefixtures("torch_is_quick")
def test_the_text_that_a_script_ends_with_is_noted(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program.replace(", torch", ""))  # whose import says nothing, and takes long
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    (tmp_path / "train.py").write_text(program)
    done, noted = run(tmp_path, "train.py")
    assert (noted["kind"], noted["exception"], noted["message"]) == ("exit", "SystemExit", "no data")
    assert noted["has_torch"] is ("torch" in program)
    assert (done.returncode, done.stdout, done.stderr) == (1, plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    "program",
    [
        WARNED + "sys.exit(1)\n",
        LOUD + "sys.exit(1)\n",
        LOUD + "try:\n    sys.exit('no data')\nexcept SystemExit:\n    sys.exit(1)\n",
        "import atexit, sys\natexit.register(int, 'x')\nsys.exit(1)\n",
        "import sys\nsys.exit('')\n",
        "import sys\nsys.stderr = None\nsys.exit('no data')\n",
        "import sys, threading\nthreading.Thread(target=sys.exit, args=('no data',)).start()\nsys.exit(1)\n",
    ],
)
def test_what_else_stands_on_standard_error_is_no_text_that_a_script_ended_with(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    done, noted = run(tmp_path, "train.py")
    assert noted is None
    assert (done.returncode, done.stdout, done.stderr) == (1, plain.stdout, plain.stderr)


HELPER = """\
import os, subprocess, sys
failing = [sys.executable, "-c", "import no_such"]
%s
"""


@pytest.mark.parametrize("between", ["failing", "['sh', '-c', 'exec \"$0\" \"$@\"', *failing]"])
def test_a_program_that_the_script_tries_and_does_without_is_not_its_failure(tmp_path: Path, between: str) -> None:
    (tmp_path / "train.py").write_text(HELPER % f"subprocess.run({between})")
    done, noted = run(tmp_path, "train.py")
    assert "No module named 'no_such'" in done.stderr and noted is None


def test_a_rank_is_no_such_program_of_its_launcher(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(
        HELPER % "subprocess.run(failing, env={**os.environ, 'RANK': '1', 'WORLD_SIZE': '2'})"
    )
    _, noted = run(tmp_path, "launch.py")
    assert (noted["exception"], noted["rank"], noted["world_size"]) == ("ModuleNotFoundError", 1, 2)


def test_nothing_heavy_is_loaded_before_the_script_and_torch_takes_over(tmp_path: Path) -> None:
    heavy = "{'torch', 'json', 'argparse', 'typing', 'pathlib', 'traceback', 'psutil'}"
    hooks = "print(sys.excepthook.__module__, argparse.ArgumentParser.error.__module__)"
    (tmp_path / "train.py").write_text(
        f"import sys\nbefore = sorted({heavy} & set(sys.modules))\nimport argparse\n{hooks}\nimport torch\n{hooks}\n"
        "print(before, [cell.cell_contents for cell in sys.excepthook.__closure__])\n"
    )
    done, _ = run(tmp_path, "train.py")
    early, late, end = done.stdout.splitlines()
    assert early == "flatout.inside.failure.pre_torch_hooks flatout.inside.failure.pre_torch_hooks"
    assert late == "flatout.inside.failure.failure_hooks argparse", done.stderr  # `wraps` gives the original's name
    assert end.startswith("[] [") and "built-in function excepthook" in end, "and the early hook is out"
