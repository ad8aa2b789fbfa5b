"""The small pieces of the recorder, each alone: batches, losses, FLOPs, the step file, the log."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.inside import log
from flatout.inside.patches.fsdp2 import _Order
from flatout.inside.patches.report import REPORTS, Report
from flatout.inside.phases.flops import FlopsStep
from flatout.inside.phases.trace_window import TraceWindow, WindowState
from flatout.inside.protocol import STEP_COLUMNS
from flatout.inside.recording.batches import count_batch
from flatout.inside.recording.losses import MAX_KEPT, Losses, StepLoss
from flatout.inside.recording.step_file import StepFile
from flatout.inside.settings import read_settings
from flatout.records.stop_rule import StopRule


@dataclass
class _Batch:
    name: str
    images: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(4, 3, 8, 8), (4, None)),
        (torch.zeros(4, 12, dtype=torch.int64), (4, 48)),
        ([torch.zeros(4, 3), torch.zeros(4, 12, dtype=torch.int64)], (4, None)),
        ({"labels": torch.zeros(4), "input_ids": torch.zeros(4, 12, dtype=torch.int64)}, (4, 48)),
        ({"a": {"b": [torch.zeros(2, 5)]}}, (2, None)),
        (_Batch("x", torch.zeros(7, 2)), (7, None)),
        (torch.tensor(3.0), (None, None)),
        (torch.zeros(6, dtype=torch.int64), (6, None)),
        (["no", "tensor"], (None, None)),
        (None, (None, None)),
    ],
)
def test_samples_and_tokens_of_a_batch(batch: object, expected: tuple[int | None, int | None]) -> None:
    assert count_batch(batch) == expected


def test_a_steps_loss_is_the_sum_of_its_passes() -> None:
    losses = Losses()
    for value in (1.5, 2.5):
        losses.add(losses.take(torch.tensor(value)))
    assert losses.settle(0, losses.close_step()) == StepLoss(4.0, None)
    assert losses.settle(1, losses.close_step()) == StepLoss(None, None)


def test_a_loss_is_taken_before_it_was_scaled() -> None:
    losses = Losses()
    unscaled = torch.tensor(2.0)
    scaled = unscaled * 1024
    losses.scaled(scaled, unscaled)
    losses.add(losses.take((scaled,)))
    assert losses.settle(0, losses.close_step()) == StepLoss(2.0, None)


@pytest.mark.parametrize("what", ["vector", "changed", "part of a large tensor", "two"])
def test_what_is_no_plain_scalar_has_no_loss(what: str) -> None:
    losses = Losses()
    loss = torch.tensor(2.0)
    if what == "vector":
        loss = torch.zeros(3)
    elif what == "part of a large tensor":
        loss = torch.zeros(10_000)[0]
    losses.add(losses.take((loss, loss) if what == "two" else loss))
    if what == "changed":
        loss.mul_(2)
    assert losses.settle(0, losses.close_step()).loss is None


def test_losses_on_a_device_wait_for_a_fetch_and_are_bounded() -> None:
    losses = Losses()
    for step in range(3 * MAX_KEPT):
        losses.add(losses.take(torch.tensor(float(step)).to("meta")))
        assert losses.settle(step, losses.close_step()) == StepLoss(None, None)
    assert len(losses._kept) <= MAX_KEPT
    assert set(losses._kept) == set(range(0, 3 * MAX_KEPT, 4))


def test_flops_of_products_are_counted_by_operand_type() -> None:
    step = FlopsStep()
    step.begin()
    torch.ones(4, 8) @ torch.ones(8, 16)
    torch.ones(4, 8, dtype=torch.bfloat16) @ torch.ones(8, 2, dtype=torch.bfloat16)
    counted = step.end()
    assert counted is not None
    assert counted[0] == {"fp32": 2 * 4 * 8 * 16, "bf16": 2 * 4 * 8 * 2}
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_flops_are_left_out_where_another_mode_is_active() -> None:
    step = FlopsStep()
    with TorchDispatchMode():
        step.begin()
        assert step.end() is None
    assert step.reason == "a dispatch mode of the script is active"


def test_flops_of_sharded_tensors_are_those_of_this_rank() -> None:
    """DTensor works shapes out under a mode of its own, which must neither fail nor count."""
    try:
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
    except ImportError:  # before torch 2.6
        from torch.distributed._composable.fsdp import fully_shard
        from torch.distributed._tensor import DeviceMesh, Replicate, Shard, distribute_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        left = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])
        right = distribute_tensor(torch.randn(8, 16), mesh, [Replicate()])
        step = FlopsStep()
        step.begin()
        _ = left @ right
        counted = step.end()
        assert counted is not None
        assert counted[0] == {"fp32": 2 * 4 * 8 * 16}
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        fully_shard(model, mesh=mesh)
        step.begin([torch.optim.SGD(model.parameters())])
        model(torch.randn(4, 8)).sum().backward()
        counted = step.end()
        assert counted is not None
        assert counted[0] == {"fp32": 6 * 4 * (8 * 16 + 16 * 4) - 2 * 4 * 8 * 16}
    finally:
        torch.distributed.destroy_process_group()


class _Unknown(torch.nn.Parameter):
    pass


def test_flops_are_left_out_for_tensors_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    step = FlopsStep()
    step.begin([torch.optim.SGD([_Unknown(torch.zeros(2))])])
    assert step.end() is None
    assert step.reason == "unknown tensor subclass of parameters: _Unknown"
    monkeypatch.setenv("FLATOUT_FLOPS", "0")
    step.begin()
    assert (step.end(), step.reason) == (None, "FLATOUT_FLOPS=0 was set")


def test_a_mode_that_the_script_opens_stays_where_it_is() -> None:
    step = FlopsStep()
    step.begin()
    with TorchDispatchMode() as theirs:
        assert step.end() is None
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is theirs
    torch.ones(2, 2) @ torch.ones(2, 2)
    torch.utils._python_dispatch._pop_mode()


def row(step: int) -> tuple[object, ...]:
    return (step, *[0] * (len(STEP_COLUMNS) - 1))


def lines_of(folder: Path) -> list[object]:
    return [json.loads(line) for line in (folder / "rank0.steps.jsonl").read_text().splitlines() if line]


def test_a_second_process_of_the_same_rank_is_refused(tmp_path: Path) -> None:
    StepFile(tmp_path, 0, {}).close(0)
    with pytest.raises(FileExistsError):
        StepFile(tmp_path, 0, {})


def test_lines_are_held_for_a_second(tmp_path: Path) -> None:
    file = StepFile(tmp_path, 0, {})
    for number, now in enumerate((0, 1, 999_999_999, 1_000_000_001)):
        file.rows([row(number)])
        file.flush(now)
        written = len(lines_of(tmp_path)) - 1
        assert written == (1 if now < 10**9 else 4)
    file.close(0)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files may not grow over 2,000 bytes: a write beyond fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_loses_no_line_once_it_has_space_again(tmp_path: Path, small_files: None) -> None:
    file = StepFile(tmp_path, 0, {})
    for number in range(200):
        file.rows([row(number)])
        file.flush(number * 10**9)
    assert (tmp_path / "rank0.steps.jsonl").stat().st_size <= 2_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    file.close(10**12)
    whole = []
    for line in (tmp_path / "rank0.steps.jsonl").read_text().splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, list):
            whole.append(value[0])
    assert sorted(set(whole)) == list(range(200))


def test_an_error_of_ours_is_logged_and_silences_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = log.Log()
    fresh.folder = tmp_path
    monkeypatch.setattr(log, "LOG", fresh)
    calls = []

    @log.guarded
    def fails() -> int:
        calls.append(1)
        raise ValueError("ours")

    for _ in range(9):
        assert fails() is None
    assert len(calls) == log.MAX_ERRORS
    text = (tmp_path / f"inside-{os.uname().nodename}.log").read_text()
    assert text.count("ValueError: ours") == log.MAX_ERRORS
    assert "nothing more is recorded" in text


def test_a_log_that_cannot_be_written_is_no_error() -> None:
    fresh = log.Log()
    fresh.folder = Path("/nowhere")
    fresh.write("x")


def test_settings_of_nonsense_are_the_defaults() -> None:
    settings = read_settings({"FLATOUT_RECORDING": "/x", "FLATOUT_STEPS": "many", "FLATOUT_WARMUP": "-1"})
    assert settings is not None
    assert (settings.num_steps, settings.warmup, settings.is_light) == (3, None, False)
    assert read_settings({}) is None
    assert not settings.has_gradients
    asked = read_settings({"FLATOUT_RECORDING": "/x", "FLATOUT_GRADIENTS": "1"})
    assert asked is not None and asked.has_gradients


def test_a_large_job_is_traced_for_fewer_steps(tmp_path: Path) -> None:
    window = TraceWindow(tmp_path / "rank0.json", 3, 200_000)
    window.prepare()
    window.start(7)
    assert not window.next_step()
    window.stop()
    assert (window.state, window.steps, window.problem) == (WindowState.DONE, [7], None)


def _marks(path: Path) -> list[str]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


def test_what_follows_the_last_complete_step_is_no_step(tmp_path: Path) -> None:
    """The number ends in the same digits as those of complete steps, and the mark keeps its length."""
    path = tmp_path / "rank0.json"
    window = TraceWindow(path, 3, 1000)
    window.prepare()
    window.start(9)
    assert window.next_step() and window.next_step()
    torch.ones(2) + 1
    window.stop()
    assert (window.steps, window.problem) == ([9, 10], None)
    assert _marks(path) == ["ProfilerStep#9", "ProfilerStep#10", "AfterLastStep11"]
    assert [file.name for file in tmp_path.iterdir()] == ["rank0.json"]


def test_a_window_without_a_complete_step_is_no_trace(tmp_path: Path) -> None:
    window = TraceWindow(tmp_path / "rank0.json", 3, 1000)
    window.prepare()
    window.start(60)
    torch.ones(2) + 1
    window.stop()
    assert (window.steps, window.problem) == ([], "the job ended before the first traced step was complete")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_space_for_the_trace_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: os.terminal_size((0, 0)) and type("U", (), {"free": 1 << 20}))
    window = TraceWindow(tmp_path / "rank0.json", 1, 1000)
    window.prepare()
    window.start(0)
    window.next_step()
    window.stop()
    assert window.problem == "the trace was not written: no space left for it (1 MiB are free)"
    assert list(tmp_path.iterdir()) == []


def test_prefetch_is_refused_where_torch_has_none() -> None:
    """As torch 2.4's `fully_shard`: its modules have no such setting."""
    report = Report("fsdp2", {}, REPORTS)
    order = _Order(report, forward=1, backward=0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    for unit in (model, model[0]):
        order.watch(unit)
    for _ in range(2):
        model(torch.zeros(1, 2))
    assert report.notes == ["prefetch needs a torch later than 2.4"]


def test_the_job_reads_the_rule_that_a_trial_was_given() -> None:
    rule = StopRule(min_steps=5, max_steps=90, max_s=20.0, relative_error=0.01, abandon_step_s=2.5)
    text = msgspec.json.encode(rule).decode()
    settings = read_settings({"FLATOUT_RECORDING": "/x", "FLATOUT_LIGHT": "1", "FLATOUT_STOP_RULE": text})
    assert settings is not None and settings.is_trial
    assert settings.stop_rule is not None
    assert dataclasses.asdict(settings.stop_rule) == msgspec.to_builtins(rule)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"min_steps": 5}', '{"min_steps": "5", "max_steps": "9"}'])
def test_a_rule_that_cannot_be_read_is_no_rule(text: str) -> None:
    settings = read_settings({"FLATOUT_RECORDING": "/x", "FLATOUT_LIGHT": "1", "FLATOUT_STOP_RULE": text})
    assert settings is not None and settings.stop_rule is None and not settings.is_trial


def test_what_a_newer_version_adds_to_the_rule_is_left_out() -> None:
    text = '{"min_steps": 5, "max_steps": 9, "min_joules": 3}'
    settings = read_settings({"FLATOUT_RECORDING": "/x", "FLATOUT_STOP_RULE": text})
    assert settings is not None and settings.stop_rule is not None and settings.stop_rule.max_steps == 9
