"""Patches of scripts that only infer, in this process: which model is found, how many threads, and which cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from flatout.inside.patches import compile as compile_module
from flatout.inside.patches import models as models_module
from flatout.inside.patches import report as report_module
from flatout.inside.patches.compile import compile as compile_in_place
from flatout.inside.patches.kv_cache import kv_cache
from flatout.inside.patches.loader_batch import loader_batch
from flatout.inside.patches.models import _Models
from flatout.inside.patches.num_threads import num_threads
from flatout.inside.patches.report import Report, Reports
from flatout.inside.recording.forward_calls import ForwardCalls


def report(name: str = "patch") -> Report:
    return Report(name, {}, Reports())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return a list to which the models that patches would change are added."""
    calls, reports = ForwardCalls(), Reports()
    monkeypatch.setattr(models_module, "FORWARD_CALLS", calls)
    monkeypatch.setattr(models_module, "REPORTS", reports)
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    data_parallel = torch.nn.parallel.DistributedDataParallel
    monkeypatch.setattr(data_parallel, "__init__", data_parallel.__init__)
    models: list[Any] = []
    of_process = _Models()
    monkeypatch.setattr(compile_module, "MODELS", of_process)
    of_process.on_model(report(), models.append)
    yield models
    calls._remove()


def test_the_first_model_that_is_called_without_gradients_is_the_one(found: list[Any]) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 3)
    with torch.no_grad():
        nn.ReLU()(torch.ones(1, 2))
        for each in (model, model, other):
            each(torch.ones(1, 2))
    assert found == [model]


def test_a_script_that_trains_has_its_own_model_changed_and_no_teacher(found: list[Any]) -> None:
    student, teacher = nn.Linear(2, 2), nn.Linear(2, 2)
    torch.optim.SGD(student.parameters(), lr=0.1)
    with torch.no_grad():
        teacher(torch.ones(1, 2))
    assert found == [student]


def test_threads_hold_against_the_script_but_not_against_a_worker_of_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    one = report()
    num_threads(one, count=3)
    torch.set_num_threads(1)
    torch.set_num_threads(3)
    assert (counts, one.details) == ([3, 3, 3], {"processes": 1, "overridden": 1})
    worker = {"__name__": "torch.utils.data._utils.worker", "torch": torch}
    exec("torch.set_num_threads(1)", worker)
    assert counts[-1] == 1


def test_batches_are_cut_at_other_places_of_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDataset(torch.arange(10))

    def shuffled() -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        return [batch.tolist() for (batch,) in DataLoader(data, 2, shuffle=True, generator=generator)]

    before = shuffled()
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    one = report()
    loader_batch(one, size=4)
    after = shuffled()
    assert [len(batch) for batch in after] == [4, 4, 2]
    assert list(chain(*after)) == list(chain(*before)) != list(range(10))
    assert [len(batch) for (batch,) in DataLoader(data, batch_size=3, drop_last=True)] == [4, 4]
    assert one.details == {"loaders": 2}
    whole = BatchSampler(SequentialSampler(data), 5, drop_last=False)
    assert [len(batch) for (batch,) in DataLoader(data, batch_sampler=whole)] == [5, 5]
    assert [int(sample) for (sample,) in DataLoader(data, batch_size=None)] == list(range(10))
    assert one.details == {"loaders": 2}


class Generation:
    """A model of transformers: what its `generate` was called with."""

    def __init__(self, use_cache: bool) -> None:
        self.generation_config = SimpleNamespace(use_cache=use_cache)

    def generate(self, inputs: object, generation_config: object = None, **kwargs: object) -> dict[str, object]:
        return kwargs


@pytest.mark.parametrize(
    ("static", "config", "given", "added"),
    [
        (False, False, {}, {"use_cache": True}),
        (False, True, {"use_cache": False}, {"use_cache": True}),
        (False, True, {}, {}),
        (True, True, {}, {"use_cache": True, "cache_implementation": "static"}),
        (True, True, {"cache_implementation": "quantized"}, {"cache_implementation": "quantized"}),
        (False, False, {"past_key_values": 1}, {"past_key_values": 1}),
    ],
)
def test_generate_keeps_a_cache_unless_the_script_gives_one(
    monkeypatch: pytest.MonkeyPatch, static: bool, config: bool, given: dict[str, Any], added: dict[str, Any]
) -> None:
    utils = ModuleType("transformers.generation.utils")
    utils.GenerationMixin = type("GenerationMixin", (Generation,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.generation.utils", utils)
    one = report()
    kv_cache(one, static=static)
    model = utils.GenerationMixin(config)
    assert model.generate([1, 2], **given) == added
    assert one.is_applied is (added != given)
    assert model.generate([1, 2], SimpleNamespace(use_cache=False), **given).get("use_cache", True) is True


def test_a_model_that_is_a_container_of_torch_is_compiled_too(
    found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Sequential.compile()` of torch alone compiles nothing."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    counters.clear()
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: original(self, backend="eager"))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    one = report("compile")
    compile_in_place(one)
    with torch.inference_mode(), torch._dynamo.config.patch(wrap_top_frame=False):
        for _ in range(3):
            model(torch.ones(1, 2))
    assert counters["stats"]["unique_graphs"] == 1
    torch._dynamo.reset()


def test_the_reports_of_a_process_that_infers_count(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module.EXIT_HANDLERS, "at_exit", lambda _: None)
    reports = Reports()
    reports.folder = tmp_path
    one = reports.add("num_threads", {})
    one.did("processes", is_process_wide=True)
    assert not list(tmp_path.iterdir()), "a launcher writes none"
    reports.infers()
    reports.write_all()
    assert len(list(tmp_path.glob("patches-*.jsonl"))) == 1
