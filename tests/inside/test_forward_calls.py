"""The calls of a model are steps only in a script that does nothing but infer, and nothing is left in the model."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from flatout.inside.checks.model_outputs import ModelOutputRecorder
from flatout.inside.recording.forward_calls import (
    MOST_WITHIN_FIRST,
    MOST_WITHOUT_PARAMETERS,
    Call,
    ForwardCalls,
    Listener,
)
from flatout.inside.recording.step_detector import MAX_CALLS_OF_OTHERS, StepDetector, StepSource


class Recorder:
    """What the hooks report, and whether the script may still do nothing but infer."""

    def __init__(self) -> None:
        self.counts: list[Any] = []
        self.models: list[int] = []
        self.calls: list[Call] = []
        self.only_infers = True
        self.model_outputs: ModelOutputRecorder | None = None

    def ended(self, call: Call, output: object) -> None:
        self.calls.append(call)
        if self.model_outputs is not None:
            self.model_outputs.take(call.number, output)

    def forward_begins(self, model: int, count: Any) -> bool:
        if self.only_infers:
            self.models.append(model)
            self.counts.append(count)
        return self.only_infers


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(inputs) + self.inner(inputs)
        return result


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * 2


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    drop = ForwardCalls().add(Listener(made.forward_begins, made.ended))
    yield made
    drop()
    assert not torch_module._global_forward_pre_hooks
    assert not {"__call__", "_call_impl"} & set(vars(Model))


def infer(model: nn.Module, times: int, size: int = 3) -> list[torch.Tensor]:
    with torch.no_grad():
        return [model(torch.ones(size, 2)) for _ in range(times)]


def test_each_call_without_gradients_is_noted_once_with_its_samples(recorder: Recorder) -> None:
    model = Model()
    results = infer(model, 4)
    assert recorder.models == [id(model)] * 4, "and no call of the modules within it"
    assert recorder.counts == [(3, None)] * 4
    assert all(torch.equal(result, torch.full((3, 2), 4.0)) for result in results)


def test_a_model_within_one_of_its_own_class_is_no_call_of_its_own(recorder: Recorder) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    outer = nn.Sequential(inner, inner)
    with torch.no_grad():
        for _ in range(3):
            outer(torch.ones(3, 2))
    assert recorder.models == [id(outer)] * 3


@pytest.mark.parametrize(("num_calls", "is_counted"), [(MOST_WITHIN_FIRST, False), (MOST_WITHIN_FIRST + 1, True)])
def test_a_first_model_that_is_never_called_again_is_not_waited_for(
    recorder: Recorder, num_calls: int, is_counted: bool
) -> None:
    first, later = Model(), Model()  # both exist until the end, so that they differ in their `id`
    infer(first, 1)
    infer(later, num_calls)
    assert (id(later) in recorder.models) is is_counted


def test_a_model_that_is_made_for_each_call_is_counted(recorder: Recorder) -> None:
    """A service loads its model for each picture (MORAN_v2#49): 4 of 400 calls were counted."""
    infer(Model(), times=1)
    for _ in range(3):
        infer(Model(), times=3)
    assert len(recorder.counts) == 10 and len(set(recorder.models)) == 1


def test_words_given_by_name_are_counted_too(recorder: Recorder) -> None:
    model = Model()
    with torch.no_grad():
        model(inputs=torch.ones(5, 2))
        model(inputs=torch.ones(5, 2))
    assert recorder.counts == [(None, None), (5, None)], "the first call is seen by a hook that gets no names"


def test_a_script_that_trains_is_left_alone(recorder: Recorder) -> None:
    Model()(torch.ones(3, 2))
    assert not torch_module._global_forward_pre_hooks
    infer(Model(), 2)
    assert recorder.models == []


def test_once_the_script_trains_nothing_is_hooked_any_more(recorder: Recorder) -> None:
    infer(Model(), 2)
    recorder.only_infers = False
    infer(Model(), 2)
    assert "__call__" not in vars(Model)
    assert len(recorder.models) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_model_can_be_pickled_and_scripted_while_its_calls_are_noted(recorder: Recorder) -> None:
    model = Model()
    infer(model, 2)
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    pickle.loads(pickle.dumps(model))
    assert torch.jit.trace(model, torch.ones(3, 2))(torch.ones(3, 2)).sum() == 24


def test_compiled_models_are_counted_and_nothing_breaks_their_graph(recorder: Recorder) -> None:
    compiled = torch.compile(Model(), backend="eager", fullgraph=True)
    assert not torch_module._global_forward_pre_hooks
    infer(compiled, 3)
    assert recorder.models == [id(compiled)] * 3


def test_a_model_that_compiles_in_place_is_counted(recorder: Recorder) -> None:
    model = Model()
    model.compile(backend="eager", fullgraph=True)
    infer(model, 3)
    assert recorder.models == [id(model)] * 3


def test_what_is_compiled_after_training_began_is_left_alone(recorder: Recorder) -> None:
    compile_as_imported_before = torch.compile
    Model()(torch.ones(3, 2))
    untouched = torch._dynamo.OptimizedModule.__call__
    compile_as_imported_before(Model(), backend="eager")
    assert torch._dynamo.OptimizedModule.__call__ is untouched


def test_an_error_of_the_model_is_the_jobs(recorder: Recorder) -> None:
    model = Model()
    infer(model, 1)
    with torch.no_grad(), pytest.raises(TypeError):
        model(None)
    infer(model, 1)
    assert len(recorder.models) == 3


def test_outputs_are_kept_by_the_number_of_the_call(recorder: Recorder) -> None:
    recorder.model_outputs = ModelOutputRecorder()
    infer(Model(), 3)
    assert sorted(recorder.model_outputs._calls) == [1, 2], "the first was seen too late"


# Which calls are steps.


def test_each_call_of_the_first_model_ends_the_step_of_the_one_before() -> None:
    detector = StepDetector()
    assert [detector.forward("a"), detector.forward("b"), detector.forward("a"), detector.forward("b")] == [
        False,
        False,
        True,
        False,
    ]
    assert detector.source is StepSource.FORWARD
    assert not detector.is_training


@pytest.mark.parametrize(("num_others", "closes"), [(MAX_CALLS_OF_OTHERS, False), (MAX_CALLS_OF_OTHERS + 1, True)])
def test_a_model_that_is_called_no_more_gives_way_to_another(num_others: int, closes: bool) -> None:
    detector = StepDetector()
    detector.forward("warm-up")
    for _ in range(num_others):
        assert not detector.forward("model")
    assert detector.forward("model") is closes


@pytest.mark.parametrize("event", ["batch", "backward", "optimizer"])
def test_other_events_are_preferred_and_begin_anew(event: str) -> None:
    detector = StepDetector()
    detector.forward("a")
    detector.forward("a")
    take = {"batch": detector.batch, "backward": detector.backward, "optimizer": lambda: detector.optimizer("x")}
    take[event]()
    assert detector.restarts
    assert not detector.forward("a")
    assert detector.source is not StepSource.FORWARD


# What is known of a call.


def test_a_loop_that_holds_the_models_own_call_is_seen_from_its_second_call_on(recorder: Recorder) -> None:
    """As `generate` of transformers, which looks up `model.__call__` once."""
    model = Model()
    call = model.__call__
    with torch.no_grad():
        for _ in range(4):
            call(torch.ones(3, 2))
        assert "_call_impl" in vars(Model)
        infer(model, 2)
    assert recorder.models == [id(model)] * 6, "each is noted once"
    assert "_call_impl" not in vars(Model), "nothing holds the old one any more"


def test_a_model_that_compiles_in_place_after_its_first_call_has_nothing_of_ours_in_its_graph(
    recorder: Recorder,
) -> None:
    model = Model()
    infer(model, 1)
    model.compile(backend="eager", fullgraph=True)
    infer(model, 2)
    assert recorder.models == [id(model)] * 3


@pytest.mark.parametrize(("num_others", "is_model"), [(1, True), (MOST_WITHOUT_PARAMETERS, False)])
def test_modules_without_parameters_prepare_inputs_unless_no_other_is_called(
    recorder: Recorder, num_others: int, is_model: bool
) -> None:
    model, transform = Model(), nn.ReLU()
    with torch.no_grad():
        for _ in range(num_others + 1 - is_model):
            transform(torch.ones(3, 2))
    infer(model, 2)
    with torch.no_grad():
        transform(torch.ones(3, 2))
    assert (id(model) in recorder.models) is is_model
    assert (id(transform) in recorder.models) is not is_model


def test_a_call_is_known_by_its_time_and_by_the_tokens_that_were_there_before(recorder: Recorder) -> None:
    model = Model()
    infer(model, 1)
    prompt = list(range(10))
    calls = [[*prompt, 1, 2], [*prompt, 1, 2, 3], [*prompt, 7], [5, 6], [8]]
    with torch.no_grad():
        for tokens in calls:
            model(torch.tensor([tokens]))
    assert [call.num_known_tokens for call in recorder.calls] == [0, 12, 10, 0, None]
    assert all(call.ended_ns > call.began_ns for call in recorder.calls)


def test_calls_on_several_threads_at_once_are_all_reported(recorder: Recorder) -> None:
    model = Model()
    infer(model, 2)
    barrier = threading.Barrier(2)

    def meet(*_: object) -> None:
        barrier.wait(5)

    model.inner.register_forward_hook(meet)
    threads = [threading.Thread(target=infer, args=(model, 1)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorder.calls) == 3, "the first is seen too late to know its end"
