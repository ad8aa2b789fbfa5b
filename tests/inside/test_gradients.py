"""Norms of gradients as real trainings use them: right and wrong ones are told apart before any loss could."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inside.patches.runs import Done, run
from tests.trial.training import changes, trial

from flatout.inside.checks.gradients import NUM_STEPS, GradientRecorder
from flatout.records.trial import GradientNorms, TrialResult
from flatout.trial.gates import check_losses
from flatout.trial.gradient_gate import check_gradients, gradient_note
from flatout.trial.gradients import read_gradients

pytestmark = pytest.mark.usefixtures("warm")

JOB = Path(__file__).with_name("gradient_job.py")
RANKS = dict.fromkeys(("ranks", "passes", "sharded", "whole"), 2)
BEFORE = "the norm of its first gradients before clipping is"


def num_ranks(how: str) -> int:
    return RANKS.get(how.split()[0], 1)


def started(folder: Path, how: str, fault: str = "", patches: Any = (), **more: str) -> Done:
    variables = {"FLATOUT_LIGHT": "1", "FLATOUT_GRADIENTS": "1"} | more
    done = run(folder, how, fault, job=JOB, patches=patches, ranks=num_ranks(how), is_recorded=True, **variables)
    assert done.code == 0, done.errors
    assert done.log == ""
    return done


def made(folder: Path, how: str, fault: str = "", patches: Any = ()) -> TrialResult:
    done = started(folder, how, fault, patches)
    for name, _ in patches:
        assert all(report["applied"] for report in done.reports.values() if report["patch"] == name), done.reports
    return trial_of(done, how)


def trial_of(done: Done, how: str) -> TrialResult:
    return trial(tuple(done.losses), gradients=read_gradients(done.recording, num_ranks(how)))


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the run of a seeded script, made once for each way of training; repeats are equal to the bit."""

    @cache
    def of(how: str) -> Done:
        return started(tmp_path_factory.mktemp(how) / "recording", how)

    return of


@pytest.fixture(scope="module")
def baseline(unchanged: Any) -> Any:
    """Return the baseline trial of a seeded script, for each way of training."""

    @cache
    def of(how: str) -> TrialResult:
        return trial_of(unchanged(how), how)

    return of


@pytest.mark.parametrize(
    ("how", "fault", "why"),
    [
        ("alone", "half", "the norm of its first gradients is 0.5 times the job's"),
        ("alone", "dropped", "1 of 8 parameters get no gradient (the first of them is number 8 of the optimizer)"),
        ("alone", "none at all", "its step 1 has no gradients"),
        ("ranks", "half", "the norm of its first gradients is 0.5 times the job's"),
        ("ranks", "unreduced", "between ranks, and they agree in the job: not all gradients are reduced"),
        ("ranks", "one rank", "between ranks, and they agree in the job: not all gradients are reduced"),
        ("ranks", "dropped", "1 of 8 parameters get no gradient"),
        ("passes", "unreduced", "between ranks, and they agree in the job: not all gradients are reduced"),
        ("sharded", "half", "the norm of its first gradients is 0.5 times the job's"),
        ("closure", "half", "the norm of its first gradients is 0.5 times the job's"),
        ("scaler", "half", "the norm of its first gradients is 0.5 times the job's"),
        ("ranks clipped", "half", f"{BEFORE} 0.5 times the job's"),
        ("ranks clipped", "doubled", f"{BEFORE} 2 times the job's"),
        ("ranks clipped", "unreduced", "between ranks, and they agree in the job: not all gradients are reduced"),
        ("ranks layers", "doubled", f"{BEFORE} 2 times the job's"),
        ("ranks each", "half", f"{BEFORE} 0.5 times the job's"),
        ("ranks each", "unreduced", "between ranks, and they agree in the job: not all gradients are reduced"),
        ("passes named", "half", f"{BEFORE} 0.5 times the job's"),
        ("sharded clipped", "half", f"{BEFORE} 0.5 times the job's"),
        ("scaler clipped", "half", f"{BEFORE} 0.5 times the job's"),
        ("closure clipped", "half", f"{BEFORE} 0.5 times the job's"),
    ],
)
def test_wrong_gradients_are_refused_while_the_learning_rate_warms_up(
    baseline: Any, tmp_path: Path, how: str, fault: str, why: str
) -> None:
    base, wrong = baseline(how), made(tmp_path / "recording", how, fault)
    assert check_losses(wrong, [base] * 3, changes()).is_passed  # they tell nothing
    for safety in ("exact", "rounding"):
        gate = check_gradients(wrong, [base] * 3, changes(safety))  # type: ignore[arg-type]
        assert not gate.is_passed and why in gate.reason


def test_missing_reductions_and_parameters_are_found_without_a_seed(tmp_path: Path) -> None:
    base = [made(tmp_path / f"{number}", "ranks", "unseeded") for number in range(3)]
    assert len({trial.losses for trial in base}) == 3
    other = made(tmp_path / "other", "ranks", "unseeded", patches=[("ddp", {"bucket_cap_mb": 1})])
    gate = check_gradients(other, base, changes())
    assert gate.is_passed, gate.reason
    for fault, why in (("unreduced", "not all gradients are reduced"), ("dropped", "1 of 8 parameters")):
        gate = check_gradients(made(tmp_path / fault, "ranks", f"{fault} unseeded"), base, changes())
        assert not gate.is_passed and why in gate.reason


@pytest.mark.parametrize(
    ("how", "patches"),
    [
        ("alone", [("optimizer", {"fused": True}), ("zero_grad_to_none", {}), ("channels_last", {})]),
        ("alone", [("optimizer", {"foreach": True}), ("dataloader", {"num_workers": 1})]),
        ("scaler", [("optimizer", {"fused": True})]),
        ("closure", [("optimizer", {"fused": True})]),
        ("ranks", [("ddp", {"bucket_cap_mb": 1, "gradient_as_bucket_view": True, "static_graph": True})]),
        ("passes", [("ddp_no_sync", {"passes": 2}), ("zero_grad_to_none", {})]),
        ("sharded", [("fsdp2", {"reshard_after_forward": False})]),
        ("ranks clipped", [("ddp", {"bucket_cap_mb": 1, "static_graph": True}), ("optimizer", {"fused": True})]),
        ("ranks layers", [("ddp", {"bucket_cap_mb": 1, "gradient_as_bucket_view": True})]),
        ("passes clipped", [("ddp_no_sync", {"passes": 2}), ("zero_grad_to_none", {})]),
        ("sharded clipped", [("fsdp2", {"reshard_after_forward": False})]),
        ("scaler clipped", [("optimizer", {"fused": True})]),
        ("closure clipped", [("optimizer", {"foreach": True})]),
    ],
)
def test_changes_that_train_the_same_pass(baseline: Any, tmp_path: Path, how: str, patches: Any) -> None:
    base, candidate = baseline(how), made(tmp_path / "recording", how, patches=patches)
    assert len(candidate.gradients[0].norms) == NUM_STEPS and all(map(math.isfinite, candidate.gradients[0].norms))
    gate = check_gradients(candidate, [base] * 3, changes())
    assert gate.is_passed and "times the job's" in gate.reason, gate.reason
    assert candidate.gradients[0].norms == pytest.approx(base.gradients[0].norms, rel=1e-4)
    assert candidate.gradients[0].unclipped == pytest.approx(base.gradients[0].unclipped, rel=1e-4)
    assert ("the norm of its gradients before clipping is 1 times" in gate.reason) == (" " in how)


def test_bf16_passes_as_rounding(baseline: Any, tmp_path: Path) -> None:
    rounded = made(tmp_path / "recording", "ranks", patches=[("autocast", {"dtype": "bfloat16"})])
    assert check_gradients(rounded, [baseline("ranks")] * 3, changes("rounding")).is_passed


@pytest.mark.parametrize(
    "how",
    [
        "alone",
        "passes",
        "scaler",
        "closure",
        "sharded",
        "ranks clipped",
        "passes layers",
        "sharded named",
        "scaler twice",
        "closure each",
        "alone part",
    ],
)
def test_the_training_is_the_same_to_the_bit_with_the_measurement_and_without(
    unchanged: Any, tmp_path: Path, how: str
) -> None:
    """Its losses, its weights, and the next random number."""
    with_it = unchanged(how)
    without = started(tmp_path / "without", how, FLATOUT_GRADIENTS="0")
    assert with_it.output == without.output and len(with_it.losses) == 12
    assert not list(without.recording.glob("gradients-*")) and list(with_it.recording.glob("gradients-*"))


def test_ranks_agree_to_the_bit_and_shards_sum_to_the_whole(baseline: Any) -> None:
    sharded, whole = (baseline(how).gradients[0] for how in ("sharded", "whole"))
    assert sharded.norms == pytest.approx(whole.norms, rel=1e-5)
    assert (sharded.num_parameters, sharded.rank_spread) == (4, None)
    assert whole.rank_spread == baseline("ranks").gradients[0].rank_spread == 0.0
    assert baseline("alone").gradients[0].rank_spread is None


@pytest.mark.parametrize(
    "how",
    [
        "ranks clipped",
        "passes named",
        "ranks layers",
        "ranks each",
        "ranks part",
        "ranks twice",
        "ranks reused",
        "sharded clipped",
        "sharded layers",
        "scaler clipped",
        "closure layers",
        "alone apart",
    ],
)
def test_norms_before_clipping_are_those_of_the_same_job_without_it(baseline: Any, how: str) -> None:
    if "apart" in how and not hasattr(torch.nn.utils, "get_total_norm"):
        pytest.skip("this torch has no total norm by itself")
    (clipped,), (free,) = baseline(how).gradients, baseline(how.split()[0]).gradients
    assert clipped.unclipped[0] == pytest.approx(free.norms[0], rel=1e-6)
    assert clipped.unclipped == pytest.approx(free.norms, rel=1e-2)  # clipped steps lead to other weights
    assert clipped.norms[0] < 0.6 * clipped.unclipped[0] and free.unclipped == ()
    assert clipped.rank_spread in (None, 0.0)
    assert gradient_note([baseline(how)] * 3) is None


def test_a_candidate_that_clips_no_more_and_one_that_does_so_by_itself_are_refused(baseline: Any) -> None:
    free, clipped = baseline("ranks"), baseline("ranks clipped")
    for candidate, base in ((free, clipped), (clipped, free)):
        gate = check_gradients(candidate, [base] * 3, changes("rounding"))
        assert not gate.is_passed and gate.reason.startswith("the norm of its first gradients is")


def test_sparse_gradients_are_not_known(tmp_path: Path) -> None:
    assert made(tmp_path / "recording", "sparse").gradients == ()


# The measurement itself, in this process.


def measured(tmp_path: Path, gradients: GradientRecorder, num_ranks: int = 1) -> tuple[GradientNorms, ...]:
    gradients.write(tmp_path, 0)
    return read_gradients(tmp_path, num_ranks)


def sgd(*gradients: torch.Tensor | None) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.zeros(3) if one is None else torch.zeros_like(one)) for one in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return torch.optim.SGD(parameters)


def test_norms_are_those_of_all_gradients_and_a_missing_one_is_none(tmp_path: Path) -> None:
    gradients = GradientRecorder(None)
    optimizer = sgd(torch.tensor([3.0, 0.0]), None, torch.tensor([[4.0]]), torch.zeros(2))
    for _ in range(NUM_STEPS + 3):
        assert gradients.before_step(optimizer, (optimizer,), {}) is None
    (found,) = measured(tmp_path, gradients)
    assert found.norms == (5.0,) * NUM_STEPS
    assert (found.num_parameters, found.without, found.faint) == (4, (1, 3), (1, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_short_gradients_are_summed_in_longer_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    gradients, optimizer = GradientRecorder(None), sgd(torch.full((1 << 16,), 300.0, dtype=dtype))
    gradients.before_step(optimizer, (optimizer,), {})
    (found,) = measured(tmp_path, gradients)
    assert found.norms == pytest.approx([300.0 * 256], rel=1e-3)  # its square is beyond float16


def test_the_scale_of_a_fused_optimizers_scaler_is_divided_out_and_its_skipped_steps_are_unknown(
    tmp_path: Path,
) -> None:
    gradients, optimizer = GradientRecorder(None), sgd(torch.tensor([3.0, 4.0]))
    scale = torch.tensor(2.0)
    for found_inf in (0.0, 1.0):
        optimizer.grad_scale, optimizer.found_inf = scale, torch.tensor(found_inf)  # type: ignore[attr-defined]
        gradients.before_step(optimizer, (optimizer,), {})
        scale.mul_(8)  # a GradScaler updates it in place
    gradients.skipped(optimizer)
    del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    gradients.before_step(optimizer, (optimizer,), {})
    (found,) = measured(tmp_path, gradients)
    assert [norm if math.isfinite(norm) else None for norm in found.norms] == [2.5, None, None, 5.0]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_no_number_is_known_to_be_none(tmp_path: Path, value: float) -> None:
    gradients, optimizer = GradientRecorder(None), sgd(torch.tensor([1.0, value]))
    gradients.before_step(optimizer, (optimizer,), {})
    (found,) = measured(tmp_path, gradients)
    assert found.norms == (math.inf,)


def test_optimizers_are_measured_each_by_itself_and_not_once_steps_count(tmp_path: Path) -> None:
    gradients = GradientRecorder(2)  # the third step after the first is the first that counts
    first, second, late = sgd(torch.ones(4)), sgd(torch.ones(9)), sgd(torch.ones(1))
    for _ in range(NUM_STEPS):
        for optimizer in (first, second):
            gradients.before_step(optimizer, (optimizer,), {})
    gradients.is_over = True
    gradients.before_step(late, (late,), {})
    assert [one.norms for one in measured(tmp_path, gradients)] == [(2.0,) * 3, (3.0,) * 3]


def test_sparse_gradients_of_one_optimizer_leave_the_other_known(tmp_path: Path) -> None:
    gradients = GradientRecorder(None)
    sparse, dense = sgd(torch.eye(3).to_sparse()), sgd(torch.ones(9))
    for optimizer in (sparse, dense):
        gradients.before_step(optimizer, (optimizer,), {})
    found = measured(tmp_path, gradients)
    assert [(one.num_parameters, repr(one.norms)) for one in found] == [(None, "(nan,)"), (1, "(3.0,)")]


def test_a_gradient_of_an_unknown_class_is_unknown_and_an_error_is_no_error_of_the_job(tmp_path: Path) -> None:
    class Own(torch.Tensor):
        pass

    optimizer = sgd(torch.ones(2))
    gradients = GradientRecorder(None)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2).as_subclass(Own)
    gradients.before_step(optimizer, (optimizer,), {})
    assert measured(tmp_path, gradients) == ()
    optimizer.param_groups[0]["params"] = [3]
    gradients.before_step(optimizer, (optimizer,), {})
    assert gradients.is_over


def test_a_rank_without_a_word_leaves_the_norms_unknown(tmp_path: Path) -> None:
    gradients, optimizer = GradientRecorder(None), sgd(torch.ones(4))
    gradients.before_step(optimizer, (optimizer,), {})
    assert measured(tmp_path, gradients, num_ranks=2) == ()
    (tmp_path / "gradients-rank1.json").write_text('{"rank": 1, "optim')
    assert read_gradients(tmp_path, 2) == ()


def test_parts_of_hybrid_shards_are_counted_once_and_what_is_not_reduced_yet_is_unknown(tmp_path: Path) -> None:
    """Four ranks, of which this one is the first: two copies of two shards."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    try:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    except ImportError:  # before torch 2.5
        from torch.distributed._tensor import DTensor, Replicate, Shard
        from torch.distributed._tensor.placement_types import Partial

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (2, 2))
        placed = {
            "shards": (Replicate(), Shard(0)),
            "copies": (Replicate(), Replicate()),
            "partial": (Replicate(), Partial()),
        }
        gradients = GradientRecorder(None)
        optimizers = []
        for placements in placed.values():
            optimizers.append(sgd(None))
            (parameter,) = optimizers[-1].param_groups[0]["params"]
            whole = DTensor.from_local(torch.tensor([0.0, 0.0]), mesh, placements, run_check=False)
            parameter = optimizers[-1].param_groups[0]["params"][0] = torch.nn.Parameter(whole)
            gradients.before_step(optimizers[-1], (optimizers[-1],), {})  # the first step does not use it
            parameter.grad = DTensor.from_local(torch.tensor([3.0, 4.0]), mesh, placements, run_check=False)
            gradients.before_step(optimizers[-1], (optimizers[-1],), {})
    finally:
        torch.distributed.destroy_process_group()
    gradients.write(tmp_path, 0)
    made = json.loads((tmp_path / "gradients-rank0.json").read_text())["optimizers"]
    shards, copies, partial = made
    assert (shards["sharded"], shards["steps"]) == ([0], [[0.0], [pytest.approx(5 / math.sqrt(2))]])
    assert (copies["sharded"], copies["steps"]) == ([], [[0.0], [5.0]])
    assert (partial["num_parameters"], partial["steps"]) == (1, [[0.0], None])


@pytest.mark.parametrize("counts", [(2, 2, 3, 3), (2, 3, 2, 3)], ids=["a group is added", "groups step one by one"])
def test_steps_of_other_parameters_than_the_first_steps_are_unknown(tmp_path: Path, counts: tuple[int, ...]) -> None:
    gradients, optimizer = GradientRecorder(None), sgd(torch.ones(4), torch.zeros(1), torch.ones(5))
    group = optimizer.param_groups[0]
    parameters = list(group["params"])
    for count in counts:  # DeepSpeed's ZeRO exchanges the groups, too
        group["params"] = parameters[:count]
        gradients.before_step(optimizer, (optimizer,), {})
    (found,) = measured(tmp_path, gradients)
    assert [norm if math.isfinite(norm) else None for norm in found.norms] == [2 if n == 2 else None for n in counts]
    assert (found.num_parameters, found.without) == (2, (1,))


def test_a_parameter_that_is_without_a_gradient_now_and_then_is_told_from_one_that_always_is(tmp_path: Path) -> None:
    gradients, optimizer = GradientRecorder(None), sgd(torch.ones(4), torch.ones(1), None)
    now_and_then = optimizer.param_groups[0]["params"][1]
    for step in range(NUM_STEPS):
        now_and_then.grad = None if step == 1 else torch.ones(1)
        gradients.before_step(optimizer, (optimizer,), {})
    (found,) = measured(tmp_path, gradients)
    assert (found.without, found.absent) == ((2,), (1, 2))


def test_parts_of_fsdp1_sum_to_the_whole_also_where_a_rank_has_none(tmp_path: Path) -> None:
    """FSDP1 itself needs a GPU; its mark does not."""
    from torch.distributed.fsdp._common_utils import _set_fsdp_flattened

    whole = torch.arange(1.0, 7.0)
    for rank, part in enumerate((whole[:4], whole[4:])):
        gradients, optimizer = GradientRecorder(None), sgd(part, None if rank else torch.full((3,), 2.0))
        for parameter in optimizer.param_groups[0]["params"]:
            _set_fsdp_flattened(parameter)
        gradients.before_step(optimizer, (optimizer,), {})
        gradients.write(tmp_path, rank)
    (found,) = read_gradients(tmp_path, 2)
    assert found.norms == pytest.approx([math.sqrt(float(whole.square().sum()) + 12)])
    assert (found.without, found.rank_spread) == ((), None)


@pytest.mark.parametrize("hook", ["bf16", "fp16", "int8"])
def test_gradients_that_hooks_round_pass(baseline: Any, tmp_path: Path, hook: str) -> None:
    candidate = made(tmp_path / "recording", "ranks", patches=[("ddp_hook", {"hook": hook})])
    gate = check_gradients(candidate, [baseline("ranks")] * 3, changes("rounding"))
    assert gate.is_passed, gate.reason


def test_the_fastest_exchange_is_none_and_is_refused(baseline: Any, tmp_path: Path) -> None:
    """Weights that are averaged after many steps cost nothing in a trial: passed off as rounding, it is found out."""
    candidate = made(tmp_path / "recording", "ranks", patches=[("local_sgd", {"every": 1000})])
    gate = check_gradients(candidate, [baseline("ranks")] * 3, changes("rounding"))
    assert not gate.is_passed
    assert "rank" in gate.reason
