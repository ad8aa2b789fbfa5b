"""Patches of DistributedDataParallel and FSDP2 on two gloo ranks: what is sent, and what becomes of the losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.inside.patches.runs import Done, Patches, run

pytestmark = pytest.mark.usefixtures("warm")

STEPS = 5


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Done]:
    kept: dict[tuple[str, ...], Done] = {}

    class Plain(dict[tuple[str, ...], Done]):
        def __missing__(self, arguments: tuple[str, ...]) -> Done:
            folder = tmp_path_factory.mktemp("plain")
            self[arguments] = run(folder / "recording", "accumulate", *arguments, ranks=2)
            return self[arguments]

    return Plain(kept)


def _run(tmp_path: Path, patches: Patches, *arguments: str, by_torchrun: bool = False) -> Done:
    done = run(tmp_path / "recording", "accumulate", *arguments, patches=patches, ranks=2, by_torchrun=by_torchrun)
    assert done.code == 0, done.errors
    assert done.said("replicas_equal") == "True"
    return done


def test_ddp_is_made_with_the_values_asked_for(plain: dict[Any, Done], tmp_path: Path) -> None:
    wanted = {"bucket_cap_mb": 100, "gradient_as_bucket_view": True, "static_graph": True}
    done = _run(tmp_path, [("ddp", wanted)], "ddp", by_torchrun=True)
    assert done.losses == plain["ddp",].losses
    assert (done.said("bucket_cap"), done.said("view")) == (str(100 << 20), "1")
    assert done.reports["ddp", 0]["details"] == done.reports["ddp", 1]["details"] == {"wrapped": 1}


@pytest.mark.parametrize(
    ("patch", "arguments", "sizes_mib", "wrapped"),
    [
        ({"first_bucket_mib": 3}, ("2",), [3, 2, 2, 2, 2, 1], 1),
        ({"first_bucket_mib": 2, "bucket_cap_mb": 5}, ("",), [2, 5, 5], 1),
        ({"first_bucket_mib": 3}, ("2", "unused"), [], 0),
    ],
)
def test_the_first_bucket_has_a_size_of_its_own(
    tmp_path: Path, patch: dict[str, int], arguments: tuple[str, ...], sizes_mib: list[int], wrapped: int
) -> None:
    done = run(tmp_path / "recording", "buckets", *arguments, patches=[("ddp", patch)], ranks=2)
    assert done.code == 0, done.errors
    said = done.said("buckets")
    assert [int(size) >> 20 for size in said.split(", ") if size != "none"] == sizes_mib
    report = done.reports["ddp", 0]
    assert report["details"].get("wrapped", 0) == wrapped
    assert bool(report.get("reason")) is not bool(wrapped)


def test_ddp_reduces_once_a_step_though_it_has_three_passes(plain: dict[Any, Done], tmp_path: Path) -> None:
    before = plain["ddp", "3"]
    done = _run(tmp_path, [("ddp_no_sync", {"passes": 3})], "ddp", "3")
    assert (int(before.said("c10d::allreduce_")), int(done.said("c10d::allreduce_"))) == (3 * STEPS, STEPS)
    assert done.losses == pytest.approx(before.losses, rel=1e-6)


def test_a_step_with_fewer_passes_than_others_is_reduced_all_the_same(plain: dict[Any, Done], tmp_path: Path) -> None:
    """As at the end of an epoch. Gradients are clipped, so they must be level before the optimizer's step."""
    done = _run(tmp_path, [("ddp_no_sync", {"passes": 3})], "ddp", "3", "2")
    assert done.losses == pytest.approx(plain["ddp", "3", "2"].losses, rel=1e-6)
    assert done.reports["ddp_no_sync", 0]["details"]["steps_with_fewer_passes"] == 1
    wrong = _run(tmp_path / "wrong", [("ddp_no_sync", {"passes": 6})], "ddp", "3")  # none has so many
    assert wrong.losses == pytest.approx(plain["ddp", "3"].losses, rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [({"hook": "powersgd", "rank": 1, "start": 2}, "power_sgd_hook"), ({"hook": "topk", "percent": 10}, "top_k_hook")],
)
def test_compressed_gradients_keep_the_replicas_equal(
    plain: dict[Any, Done], tmp_path: Path, parameters: dict[str, Any], name: str
) -> None:
    done = _run(tmp_path, [("ddp_hook", parameters)], "ddp")
    assert done.said("hook") == name
    assert done.losses[:2] == plain["ddp",].losses[:2]  # the first step is reduced plainly
    assert done.losses != plain["ddp",].losses
    assert done.losses == pytest.approx(plain["ddp",].losses, rel=0.05)


def test_top_k_of_nearly_all_entries_is_nearly_the_plain_sum(plain: dict[Any, Done], tmp_path: Path) -> None:
    done = _run(tmp_path, [("ddp_hook", {"hook": "topk", "percent": 50})], "ddp")
    assert done.losses == pytest.approx(plain["ddp",].losses, rel=5e-3)


def test_a_hook_of_the_scripts_own_stays(plain: dict[Any, Done], tmp_path: Path) -> None:
    done = _run(tmp_path, [("ddp_hook", {"hook": "topk"})], "ddp", "1", "0", "own")
    assert done.said("hook") == "allreduce_hook"
    assert done.losses == plain["ddp",].losses
    assert done.reports["ddp_hook", 0]["reason"] == "the script has its own hook"


@pytest.mark.parametrize(("hook", "rel"), [("bf16", 1e-2), ("fp16", 2e-3), ("int8", 1e-2)])
def test_gloo_reduces_rounded_gradients(plain: dict[Any, Done], tmp_path: Path, hook: str, rel: float) -> None:
    done = _run(tmp_path, [("ddp_hook", {"hook": hook})], "ddp")
    assert done.said("hook") == f"{hook}_hook"
    assert done.losses != plain["ddp",].losses
    assert done.losses == pytest.approx(plain["ddp",].losses, rel=rel)


def test_fsdp2_gathers_less_where_weights_are_kept(plain: dict[Any, Done], tmp_path: Path) -> None:
    before = plain["fsdp2",]
    done = _run(tmp_path, [("fsdp2", {"reshard_after_forward": False})], "fsdp2", by_torchrun=True)
    assert int(done.said("c10d::_allgather_base_")) < int(before.said("c10d::_allgather_base_"))
    assert done.losses == before.losses


def test_fsdp2_sends_only_gradients_between_copies(plain: dict[Any, Done], tmp_path: Path) -> None:
    """Each rank is a copy here, so the norm of all gradients takes no all-reduce, but each of five units does."""
    done = _run(tmp_path, [("fsdp2", {"ranks_per_copy": 1})], "fsdp2")
    assert int(done.said("c10d::allreduce_")) == 5 * STEPS
    assert int(plain["fsdp2",].said("c10d::allreduce_")) == STEPS
    assert done.losses == pytest.approx(plain["fsdp2",].losses, rel=1e-6)
    assert done.reports["fsdp2", 0]["details"] == {"sharded_within_a_copy": 5}


@pytest.mark.parametrize("ranks_per_copy", [2, 3])
def test_fsdp2_is_not_divided_into_copies_that_do_not_fit(
    plain: dict[Any, Done], tmp_path: Path, ranks_per_copy: int
) -> None:
    done = _run(tmp_path, [("fsdp2", {"ranks_per_copy": ranks_per_copy})], "fsdp2")
    assert done.losses == plain["fsdp2",].losses
    assert done.reports["fsdp2", 0]["reason"] == f"2 ranks cannot be divided into copies of {ranks_per_copy}"


def test_fsdp2_gathers_ahead(plain: dict[Any, Done], tmp_path: Path) -> None:
    done = _run(tmp_path, [("fsdp2", {"forward_prefetch": 2, "backward_prefetch": 2})], "fsdp2")
    assert done.losses == plain["fsdp2",].losses
    assert done.reports["fsdp2", 0]["details"] == {"units": 5}


@pytest.mark.parametrize("short_step", ["0", "2"])
def test_fsdp2_reduces_once_a_step(plain: dict[Any, Done], tmp_path: Path, short_step: str) -> None:
    before = plain["fsdp2", "3", short_step]
    done = _run(tmp_path, [("fsdp2_no_sync", {"passes": 3})], "fsdp2", "3", short_step)
    assert int(done.said("c10d::_reduce_scatter_base_")) == 5 * STEPS < int(before.said("c10d::_reduce_scatter_base_"))
    assert done.losses == pytest.approx(before.losses, rel=1e-6)


def test_each_rank_is_bound_to_its_share_of_the_cores(tmp_path: Path) -> None:
    import os

    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = _run(tmp_path, [("bind_cores", {"by": "exclusive"})], "ddp")
    shares = [set(done.reports["bind_cores", rank]["details"]["cores"].split(",")) for rank in (0, 1)]
    assert shares[0].isdisjoint(shares[1])
    assert len(shares[0] | shares[1]) == len(os.sched_getaffinity(0))
