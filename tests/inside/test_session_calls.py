"""Runs of ONNX Runtime's sessions are calls: with a stand-in for its class, and the library where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flatout.inside.checks.model_outputs import MAX_CALLS
from flatout.inside.patches.onnx_session import onnx_session
from flatout.inside.patches.report import Report, Reports
from flatout.inside.recording.forward_calls import Call, ForwardCalls, Listener
from flatout.inside.recording.session_calls import SESSIONS_MODULE, SessionCalls


class Options:
    """The options of a session that the patch and the facts use."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.graph_optimization_level = SimpleNamespace(name="ORT_ENABLE_BASIC")
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, name: str, value: str) -> None:
        self.entries[name] = value


class Session:
    """A session that doubles its input."""

    def __init__(self, path: object, sess_options: Options | None = None, providers: object = None) -> None:
        self.options = sess_options or Options()
        self.asked = providers

    def run(self, output_names: object, input_feed: dict[str, Any], run_options: object = None) -> list[Any]:
        return [2 * array for array in input_feed.values()]

    def get_session_options(self) -> Options:
        return self.options

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class of sessions of a library that seems to be imported."""
    kind = type("InferenceSession", (Session,), {})
    module: Any = ModuleType(SESSIONS_MODULE)
    package: Any = ModuleType("onnxruntime")
    module.InferenceSession = kind
    package.SessionOptions = Options
    package.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    package.GraphOptimizationLevel = SimpleNamespace(ORT_ENABLE_ALL=SimpleNamespace(name="ORT_ENABLE_ALL"))
    monkeypatch.setitem(sys.modules, SESSIONS_MODULE, module)
    monkeypatch.setitem(sys.modules, "onnxruntime", package)
    return kind


class Seen:
    """What is reported of the calls."""

    def __init__(self) -> None:
        self.counts: list[Any] = []
        self.calls: list[Call] = []
        self.outputs: list[Any] = []

    def begins(self, model: int, count: Any) -> bool:
        self.counts.append(count)
        return True

    def ended(self, call: Call, output: object) -> None:
        self.calls.append(call)
        self.outputs.append(output)


@pytest.fixture
def seen(library: Any) -> Iterator[tuple[Seen, SessionCalls]]:
    made, calls = Seen(), ForwardCalls()
    drop = calls.add(Listener(made.begins, made.ended))
    sessions = SessionCalls(calls)
    remove = sessions.install()
    yield made, sessions
    drop()
    remove()
    assert "run" not in vars(library)


def test_each_run_is_a_call_with_its_samples_and_tokens(library: Any, seen: tuple[Seen, SessionCalls]) -> None:
    session = library("model.onnx")
    for array in (np.ones((4, 3), dtype="f4"), np.ones((2, 7), dtype="i8"), np.ones(5, dtype="f4")):
        (output,) = session.run(None, {"x": array})
        assert (output == 2 * array).all()
    assert seen[0].counts == [(4, None), (2, 14), (5, None)]
    assert all(call.ended_ns > call.began_ns for call in seen[0].calls)
    assert torch.equal(seen[0].outputs[0][0], torch.full((4, 3), 2.0))


def test_only_the_first_outputs_are_made_tensors(library: Any, seen: tuple[Seen, SessionCalls]) -> None:
    session = library("model.onnx")
    for _ in range(MAX_CALLS + 1):
        session.run(None, {"x": np.ones((1, 2), dtype="f4")})
    assert seen[0].outputs[MAX_CALLS - 1] is not None
    assert seen[0].outputs[MAX_CALLS] is None


def test_preparing_inputs_with_modules_of_torch_does_not_end_it(library: Any, seen: tuple[Seen, SessionCalls]) -> None:
    session, resize = library("model.onnx"), nn.Linear(2, 2)
    session.run(None, {"x": np.ones((1, 2), dtype="f4")})
    for _ in range(2):
        session.run(None, {"x": resize(torch.ones(1, 2)).detach().numpy()})
    assert len(seen[0].calls) == 3


def test_the_facts_are_those_of_the_session(library: Any, seen: tuple[Seen, SessionCalls]) -> None:
    assert seen[1].facts() == {}
    session = library("model.onnx")
    session.run(None, {"x": np.ones((1, 2), dtype="f4")})
    assert seen[1].facts() == {
        "runs_onnx": True,
        "device": "cpu",
        "session_threads": 0,
        "session_is_optimized": False,
        "session_provider": "CPUExecutionProvider",
        "other_providers": "CUDAExecutionProvider",
    }


def test_a_provider_is_asked_for_where_the_library_has_it(library: Any) -> None:
    report = Report("onnx_session", {}, Reports())
    onnx_session(report, provider="cuda")
    assert library("model.onnx").asked == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert report.reason == "ONNX Runtime did not take the provider"  # this one keeps to the CPU
    none = Report("onnx_session", {}, Reports())
    onnx_session(none, provider="openvino")
    library("model.onnx")
    assert none.reason == "this ONNX Runtime has no provider OpenVINOExecutionProvider"


def test_options_are_given_to_sessions_with_and_without_some(library: Any) -> None:
    report = Report("onnx_session", {}, Reports())
    onnx_session(report, threads=3, spinning=False, optimize=True)
    given = Options()
    for session in (library("model.onnx"), library("model.onnx", given), library("model.onnx", sess_options=given)):
        assert session.options.intra_op_num_threads == 3
        assert session.options.entries == {"session.intra_op.allow_spinning": "0"}
        assert session.options.graph_optimization_level.name == "ORT_ENABLE_ALL"
    assert report.details == {"sessions": 3}


def test_the_library_itself(tmp_path: Path) -> None:
    library = pytest.importorskip("onnxruntime")
    from benchmarks.small_onnx_model import write_model

    write_model(tmp_path / "model.onnx", width=8, layers=2)
    made, calls = Seen(), ForwardCalls()
    drop = calls.add(Listener(made.begins, made.ended))
    sessions = SessionCalls(calls)
    remove = sessions.install()
    try:
        session = library.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        (output,) = session.run(None, {"x": np.ones((4, 8), dtype="f4")})
        assert made.counts == [(4, None)]
        assert np.array_equal(made.outputs[0][0].numpy(), output)
        assert sessions.facts()["session_is_optimized"] is True
    finally:
        remove()
        drop()
