"""Variants that are files: ONNX by its own runtime, and a folder of Hugging Face by the package `safetensors`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flatout.compress.model_files import kind_of_model, make_model
from flatout.compress.onnx_files import NotMadeError
from flatout.compress.sizes import bytes_on_disk

WIDTH = 64
INPUTS = np.random.RandomState(0).standard_normal((8, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of ONNX: two matrix multiplications."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.RandomState(1)
    weights = [(random.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32) for _ in range(2)]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w1"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])],
        [numpy_helper.from_array(weight, f"w{place}") for place, weight in enumerate(weights)],
    )
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def run(path: Path) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    output: np.ndarray = session.run(None, {"x": INPUTS})[0]
    return output


@pytest.mark.parametrize(
    ("name", "most_size", "most_error"),
    [("file-int8", 0.4, 0.03), ("file-fp16", 0.6, 0.002)],
)
def test_files_of_onnx(model: Path, tmp_path: Path, name: str, most_size: float, most_error: float) -> None:
    made = make_model(name, model, tmp_path / name)
    size, before = bytes_on_disk(made), bytes_on_disk(model)
    assert size is not None
    assert before is not None
    assert size < most_size * before
    right = run(model)
    error = np.linalg.norm(run(made) - right) / np.linalg.norm(right)
    assert 1e-6 < error < most_error


def test_what_is_not_onnx_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("no model")
    with pytest.raises(NotMadeError):
        make_model("file-int8", tmp_path / "model.onnx", tmp_path / "out")


@pytest.mark.parametrize("name", ["file-int8", "file-fp16"])
def test_a_file_whose_weights_stay_as_they_are_is_not_made(tmp_path: Path, name: str) -> None:
    """ONNX Runtime ships a regression whose weights are attributes: int8 finds none, and float16 only adds casts."""
    import onnxruntime

    shipped = Path(onnxruntime.__file__).parent / "datasets/logreg_iris.onnx"
    with pytest.raises(NotMadeError):
        make_model(name, shipped, tmp_path)


def test_a_folder_in_bfloat16_is_what_torch_makes_of_it(tmp_path: Path) -> None:
    """Ties, infinities and NaN too; other files are copied, and the type in the configuration is changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    values = torch.randn(33, 7, generator=torch.Generator().manual_seed(0))
    values[0, :4] = torch.tensor([float("inf"), float("-inf"), 1.00390625, 1.01171875])
    tensors = {"a": values, "ids": torch.arange(5), "b": torch.ones(3)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"hidden_size": 7, "torch_dtype": "float32"}))
    (folder / "vocab.txt").write_text("x")
    made = make_model("file-bf16", folder, tmp_path / "out")
    found = load_file(made / "model.safetensors")
    assert all(torch.equal(found[name], tensors[name].bfloat16()) for name in ("a", "b"))
    assert torch.equal(found["ids"], tensors["ids"])
    assert json.loads((made / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (made / "vocab.txt").read_text() == "x"
    nan = {"n": torch.tensor([float("nan")])}
    save_file(nan, folder / "model.safetensors")
    assert torch.isnan(load_file(make_model("file-bf16", folder, tmp_path / "nan") / "model.safetensors")["n"]).all()


@pytest.mark.parametrize("content", [b"", b"\x10\x00\x00\x00\x00\x00\x00\x00no json at all!!", b"\xff" * 16])
def test_a_damaged_file_of_safetensors_is_not_made(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(NotMadeError, match="no files of safetensors"):
        make_model("file-bf16", folder, tmp_path / "none")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(NotMadeError, match="cannot be read"):
        make_model("file-bf16", folder, tmp_path / "out")


def test_the_kind_of_a_model(tmp_path: Path) -> None:
    assert [kind_of_model(path) for path in (None, tmp_path, tmp_path / "m.onnx")] == ["none", "folder", "onnx"]
