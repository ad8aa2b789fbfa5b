"""What a share delivers, with stand-ins whose rates are known; and two commands whose gain is known."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from tests.bench.test_summary import ceilings, product
from tests.watch.nvml import FakeNvml

from flatout.cli import main
from flatout.errors import FlatoutError, InputError
from flatout.probe.gpu_slice import gpu_slice
from flatout.report.sharing_text import sharing_text
from flatout.report.terminal import TextStyle
from flatout.share_pipeline import LEAST_STEPS, WARMUP_STEPS, Ran, measure_pair, measure_shares, pair_sharing


class TimeSlices:
    """In place of the processes: a device that gives each of n alike 1/n of its time; unlike ones take none of it."""

    device = "a stand-in"
    runs: ClassVar[list[tuple[str, ...]]] = []

    def __init__(self, number: int, command: object, environment: object) -> None:
        self.runs.clear()

    def rates(self, works: Sequence[str], seconds: float) -> list[float]:
        self.runs.append(tuple(works))
        return [{"matmul": 100.0, "memory_copy": 60.0}[work] / works.count(work) for work in works]

    def end(self) -> None:
        pass


def test_each_kind_of_work_is_measured_alone_and_beside_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.share_pipeline._Workers", TimeSlices)
    whole = ceilings([product(2 * 4096**3 / 400, size=4096), product(1.0, size=8192)])
    found = measure_shares(3, whole=whole)
    assert (found.device, found.alone) == ("a stand-in", {"matmul": 100.0, "memory_copy": 60.0})
    shares = {(each.work, each.beside): each.delivered_share for each in found.delivered}
    assert shares == {
        ("matmul", "matmul"): pytest.approx(1 / 3),
        ("memory_copy", "memory_copy"): pytest.approx(1 / 3),
        ("matmul", "memory_copy"): 1.0,
        ("memory_copy", "matmul"): 1.0,
    }
    assert {(each.num_processes, each.asked_share) for each in found.delivered} == {(3, 1 / 3)}
    runs = TimeSlices.runs
    assert runs == runs[::-1] and len(runs) == 12 and len(set(runs)) == 6, "there and back"
    text = sharing_text(found, style=TextStyle(width=100))
    assert "2 x matrix multiplication" in text and "33 %" in text
    assert found.whole_share == pytest.approx(100 / 400)
    assert "alone, matrix multiplication reaches 25 % of the whole GPU" in text


def test_a_process_that_ends_is_said_with_its_code() -> None:
    with pytest.raises(FlatoutError, match="ended with code 7"):
        measure_shares(2, worker=(sys.executable, "-S", "-c", "raise SystemExit(7)"))


def test_the_worker_works_when_it_is_told_to() -> None:
    found = measure_shares(1, seconds=0.01, worker=(sys.executable, "-m", "flatout.probe.share_worker", "--numpy"))
    assert all(rate > 1e6 for rate in found.alone.values()) and found.device.startswith("CPU of")


def stepping(step_s: float, num_steps: int, begin_s: float = 0.0) -> Ran:
    steps = tuple((begin_s + number * step_s, number) for number in range(1, num_steps + 1))
    return Ran(took_s=begin_s + num_steps * step_s, steps=steps)


@pytest.mark.parametrize(
    ("together", "verdict"),
    [
        ([(0.15, 0.3), (0.16, 0.3)], "gains"),
        ([(0.2, 0.5), (0.21, 0.5)], "loses"),
        ([(0.2, 0.39), (0.2, 0.41)], "undecided"),
    ],
)
def test_two_commands_gain_if_their_speeds_add_up_to_more_than_one(
    together: list[tuple[float, float]], verdict: str
) -> None:
    """Alone, steps take 0.1 and 0.2 s."""
    alone = [[stepping(0.1, 100)] * 2, [stepping(0.2, 100)] * 2]
    found = pair_sharing(("a", "b"), alone, [[stepping(a, 300), stepping(b, 100)] for a, b in together])
    assert (found.unit, found.verdict, found.alone_s) == ("step", verdict, pytest.approx((0.1, 0.2)))
    assert found.sums == pytest.approx(tuple(0.1 / a + 0.2 / b for a, b in together))


def test_only_the_steps_while_both_run_count() -> None:
    """The first one takes 0.2 s beside the other, which ends after 10 s, and 0.1 s without it."""
    slow = stepping(0.2, 50)
    fast = [(slow.took_s + 0.1 * number, 50 + number) for number in range(1, 51)]
    first = Ran(took_s=fast[-1][0], steps=(*slow.steps, *fast))
    alone = [[stepping(0.1, 100)] * 2, [stepping(0.1, 100)] * 2]
    found = pair_sharing(("a", "b"), alone, [[first, stepping(0.2, 50)]] * 2)
    assert found.shares == pytest.approx((0.5, 0.5), rel=0.01)


@pytest.mark.parametrize(("num_steps", "unit"), [(WARMUP_STEPS + LEAST_STEPS - 1, "command"), (100, "step")])
def test_with_few_steps_the_whole_command_counts(num_steps: int, unit: str) -> None:
    alone = [[stepping(0.1, num_steps)] * 2, [stepping(0.1, 100)] * 2]
    found = pair_sharing(("a", "b"), alone, [[stepping(0.1, num_steps), stepping(0.1, 100)]] * 2)
    assert found.unit == unit


def test_of_whole_commands_the_longer_one_is_alone_at_its_end() -> None:
    """Both at half their speed for 20 s, in which the first one (10 s) ends; the other (15 s) needs 5 s more alone."""
    alone = [[Ran(took_s=10, steps=())] * 2, [Ran(took_s=15, steps=())] * 2]
    found = pair_sharing(("a", "b"), alone, [[Ran(took_s=20, steps=()), Ran(took_s=25, steps=())]] * 2)
    assert (found.shares, found.sums) == (pytest.approx((0.5, 0.5)), pytest.approx((1.0, 1.0)))


def test_commands_that_only_wait_gain_and_one_that_fails_is_said() -> None:
    found = measure_pair(("sleep", "0.3"), ("sleep", "0.3"))
    assert found.pair is not None and found.pair.verdict == "gains"
    assert found.pair.commands == ("sleep 0.3", "sleep 0.3") and len(found.pair.sums) == 2
    with pytest.raises(InputError, match="must end with code 0, but ended with 3") as refused:
        measure_pair(("sh", "-c", "echo no GPU; exit 3"), ("true",))
    assert refused.value.hint == "no GPU"


def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for words, problem in (
        (["--share", "--", "a"], "compares two commands"),
        (["--share", "--with", "b"], "compares two commands"),
        (["--share", "--with", "b 'c", "--", "a"], "unfinished quotation"),
        (["--share", "--ranks", "1"], "needs 2 to 16 processes"),
        (["--share", "--only", "matmul"], "measures shares alone"),
        (["--with", "b", "--", "a"], "need `--share`"),
    ):
        monkeypatch.setattr(sys, "argv", ["flatout", "bench", *words])
        assert main() == 2
        assert problem in capfd.readouterr().err


def test_a_pair_is_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "share.json"
    words = ["bench", "--share", "--json", "--out", str(out), "--with", "true", "--", "sleep", "0.1"]
    monkeypatch.setattr(sys, "argv", ["flatout", *words])
    assert main() == 0
    printed, written = json.loads(capfd.readouterr().out), json.loads(out.read_text())
    assert printed["schema"] == written["schema"] == "flatout/sharing"
    assert printed["pair"]["commands"] == ["sleep 0.1", "true"]


class MigNvml(FakeNvml):
    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, object]:  # noqa: N802
        slices = type("Attributes", (), {"gpuInstanceSliceCount": 3})
        whole = {"nvmlDeviceGetMaxMigDeviceCount": 7}
        return {"nvmlDeviceGetAttributes": slices, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": whole}


@pytest.mark.parametrize(
    ("environment", "kind", "share"),
    [
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, "mig", 3 / 7),
        ({"CUDA_DEVICE_SM_LIMIT": "30"}, "hami", 0.3),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, "mps", 0.5),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, "whole", None),
        ({"CUDA_DEVICE_SM_LIMIT": "all"}, "whole", None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "whole", None),
    ],
)
def test_what_was_asked_for_is_read_where_it_is_stated(
    environment: dict[str, str], kind: str, share: float | None, tmp_path: Path
) -> None:
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    found = gpu_slice({**pipe, **environment}, MigNvml())
    assert (found.kind, found.asked_share) == (kind, pytest.approx(share))
    (tmp_path / "control").touch()
    assert gpu_slice(pipe).kind == "mps"
