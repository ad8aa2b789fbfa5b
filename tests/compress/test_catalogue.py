"""Which variants are offered, and that each row of the catalogue is a file inside the job."""

from __future__ import annotations

import sys

import pytest

from flatout.compress.catalogue import ROWS, chosen_rows, unoffered, variant_of
from flatout.compress.commands import user_command
from flatout.compress.script_python import installed_packages
from flatout.errors import UsageError
from flatout.inside.compression.variants import MODULES


def test_each_row_is_a_variant_inside_the_job() -> None:
    assert [variant_of(row).kind for row in ROWS if row.applied_by == "patch"] == list(MODULES)


def test_variants_are_chosen_by_name() -> None:
    assert [row.name for row in chosen_rows(["fp8", "bf16", "fp8"])] == ["fp8", "bf16"]
    with pytest.raises(UsageError, match=r"`--variants` must be of bf16, .*, but got int9"):
        chosen_rows(["int9"])


def test_what_the_machine_or_the_scripts_python_lacks_is_not_offered() -> None:
    rows = {row.name: row for row in ROWS}
    assert unoffered(rows["bf16"], {}, has_gpu=False) is None
    assert unoffered(rows["onnx"], {"onnx": True, "onnxruntime": True}, has_gpu=False) is None
    reason = unoffered(rows["onnx"], {"onnx": False, "onnxruntime": False}, has_gpu=False)
    assert reason == "onnx and onnxruntime cannot be imported by the script's Python"
    assert unoffered(rows["onnx"], {}, has_gpu=False) is None  # unknown, so it is tried
    assert unoffered(rows["2:4"], {}, has_gpu=False) == "this machine has no NVIDIA GPU"
    assert unoffered(rows["2:4"], {}, has_gpu=True) is None


def test_the_scripts_python_is_asked_for_packages() -> None:
    command = user_command("--eval", f"{sys.executable} eval.py")
    assert installed_packages(command, ["json", "no_such_package"]) == {"json": True, "no_such_package": False}
    assert installed_packages(user_command("--eval", "bash -c x"), ["json"]) == {}
    assert installed_packages(command, []) == {}
