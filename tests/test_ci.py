"""Continuous integration notices a skipped test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = ROOT / ".ci" / "check_skips.py"


def check(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    """What the check says of the JUnit file that pytest writes for a test file."""
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=junit.xml", "test_it.py"]
    # pytest itself writes the file; the plugins that are installed take longer to import than these tests to run.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(pytest_run, cwd=tmp_path, env=environment, capture_output=True, check=False)
    return subprocess.run([sys.executable, CHECK, tmp_path / "junit.xml"], capture_output=True, text=True, check=False)


PASSES = "import pytest\ndef test_passes(): pass\n"


@pytest.mark.parametrize(
    "skip",
    [
        "@pytest.mark.skip(reason='needs a GPU')\ndef test_one(): pass",
        "@pytest.mark.gpu\ndef test_one(): pytest.skip('needs a GPU with 80 GB')",
        "pytest.skip('needs a GPU', allow_module_level=True)",
        "",
    ],
)
def test_a_skip_for_want_of_a_gpu_is_allowed(tmp_path: Path, skip: str) -> None:
    done = check(tmp_path, PASSES + skip)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "skip",
    [
        "@pytest.mark.skip(reason='shared data is absent')\ndef test_one(): pass",
        "@pytest.mark.gpu\ndef test_one(): pytest.skip('shared data is absent')",
        "pytest.skip('shared data is absent', allow_module_level=True)",
        "@pytest.mark.xfail(reason='shared data is absent')\ndef test_one(): raise ValueError",
    ],
)
def test_any_other_skip_fails(tmp_path: Path, skip: str) -> None:
    done = check(tmp_path, PASSES + skip)
    assert done.returncode == 1
    assert "shared data is absent" in done.stderr


def test_a_missing_module_fails(tmp_path: Path) -> None:
    done = check(tmp_path, PASSES + "pytest.importorskip('no_such_module')")
    assert done.returncode == 1
    assert "no_such_module" in done.stderr


def test_no_test_at_all_fails(tmp_path: Path) -> None:
    done = check(tmp_path, "")
    assert (done.returncode, done.stderr) == (1, "error: no test ran\n")
