"""Torch modules on the meta device."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.plan.counts import num_parameters
from flatout.plan.model_names import executed_file, workload

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("warm")

NANO = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n_head = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

class Model(nn.Module):
    def __init__(self, layers=12, width=768, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50257, bias=False)
        self.head.weight = self.wte.weight

def gpt2():
    return Model()

def huge():
    return Model(layers=96, width=12288, heads=96)

class Odd(Model):
    def __init__(self):
        super().__init__()
        self.more = nn.ModuleList([nn.Linear(4096, 4096)])

def fails():
    raise RuntimeError("no data")

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nano.py"
    path.write_text(NANO)
    return path


def test_a_module_has_its_own_parameters(file: Path) -> None:
    found = workload(f"{file}:gpt2")
    assert (found.num_layers, found.hidden, found.num_heads, found.ffn) == (12, 768, 12, 3072)
    assert num_parameters(found) == 124_439_808
    assert not found.is_gated and found.is_tied


def test_a_module_of_175_billion_parameters_takes_no_memory(file: Path) -> None:
    assert num_parameters(workload(f"{file}:huge")) == pytest.approx(175e9, rel=0.005)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Odd", "but a transformer with the shape that was read from it has"),
        ("fails", "fails on the meta device: RuntimeError: no data"),
        ("number", "must be a torch module or return one, but is int"),
        ("absent", "must be a torch module or return one, but is NoneType"),
    ],
)
def test_what_is_no_transformer_is_one_line(name: str, message: str, file: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        workload(f"{file}:{name}")
    assert error.value.hint


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.exit('no data\\nin /data')", "exits, with no data in /data"),
        ("import sys\nsys.exit(3)", "exits, with code 3"),
        ("def m():\n    raise SystemExit", "exits, with code 0"),
        ("import os\nos._exit(7)", "ends the process: code 7"),
        ("import os\nos.kill(os.getpid(), 9)", "ends the process: SIGKILL"),
        ("class Odd(BaseException): pass\nraise Odd('x\\ny')", "fails on the meta device: Odd: x y"),
        (
            "import atexit\natexit.register(print, 'bye')\nraise ValueError('x')",
            "fails on the meta device: ValueError: x",
        ),
    ],
)
def test_a_file_that_ends_itself_is_an_error_with_its_name(code: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text(code)
    with pytest.raises(InputError) as error:
        workload(f"{path}:m")
    assert str(error.value) == f"`{path}:m` {message}"
    assert error.value.hint


def test_what_a_file_prints_is_not_part_of_the_plan(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.write_text("print('loading')\n" + file.read_text())
    assert workload(f"{file}:gpt2").num_layers == 12
    assert capfd.readouterr() == ("", "loading\n")


def test_only_a_file_that_exists_is_announced(file: Path) -> None:
    assert executed_file(f"{file}:gpt2") == str(file)
    assert executed_file("llama3-8b") is None
    assert executed_file("config.json") is None
    assert executed_file(f"{file}.absent.py:gpt2") is None


def test_a_hugging_face_model_is_its_config(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "hub.py"
    path.write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "def small():\n"
        "    return LlamaForCausalLM(LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=4,\n"
        "        num_attention_heads=8, num_key_value_heads=2, vocab_size=1000))\n"
    )
    found = workload(f"{path}:small")
    layer = 256 * (8 + 4) * 32 + 256 * 256 + 3 * 256 * 688 + 2 * 256
    assert num_parameters(found) == 4 * layer + 2 * 1000 * 256 + 256


@pytest.mark.usefixtures("cold")
def test_a_module_in_the_current_folder_does_not_stand_in_for_torch(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('not torch')")
    monkeypatch.chdir(tmp_path)
    assert num_parameters(workload(f"{file}:gpt2")) == 124_439_808
