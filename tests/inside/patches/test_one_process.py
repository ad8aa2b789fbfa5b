"""Patches in a job of one process: the same losses, and a sign that each took effect."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.inside.patches.runs import Done, run

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module")
def baseline(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("baseline")
    done = run(folder / "recording", "plain", folder / "a.pt")
    assert done.code == 0, done.errors
    return done


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("patch", "parameters", "details"),
    [
        ("optimizer", {"foreach": True}, {"optimizers": 1}),
        ("zero_grad_to_none", {}, {"calls": 18}),
        ("activation_checkpointing", {"every": 2}, {"blocks": 2, "forwards": 36}),
        ("background_checkpoint", {}, {"saves": 4}),
        (
            "dataloader",
            {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
            {"workers": 2, "loaders": 1},
        ),
        ("cudnn_benchmark", {}, {"processes": 1}),
        ("tf32", {}, {"processes": 1}),
        # After 6, 9, 12, 15 and 18 of 18 steps.
        (
            "garbage_collection",
            {"how": "together", "after": 6, "every": 3},
            {"full_collections": 1, "young_collections": 4},
        ),
    ],
)
def test_an_exact_patch_takes_effect_and_keeps_every_bit(
    baseline: Done, tmp_path: Path, patch: str, parameters: dict[str, Any], details: dict[str, int]
) -> None:
    done = run(tmp_path / "recording", "plain", tmp_path / "a.pt", patches=[(patch, parameters)])
    assert done.code == 0, done.errors
    assert done.losses == baseline.losses
    report = done.reports[patch, 0]
    assert (report["applied"], report["reason"], report["details"]) == (True, None, details)
    assert done.log == ""
    if patch != "optimizer":  # whose own settings are in a checkpoint
        assert _hash(tmp_path / "a.pt") == _hash(baseline.recording.parent / "a.pt")


@pytest.mark.usefixtures("cold")
def test_a_fused_optimizer_rounds_in_the_last_digits_only(baseline: Done, tmp_path: Path) -> None:
    patches = [("optimizer", {"fused": True})]
    done = run(tmp_path / "recording", "plain", tmp_path / "a.pt", patches=patches)
    assert done.said("fused") == "True"
    assert done.losses == pytest.approx(baseline.losses, rel=1e-5)


def test_autocast_changes_the_forward_and_gives_fp32_to_the_loss(baseline: Done, tmp_path: Path) -> None:
    done = run(tmp_path / "recording", "plain", tmp_path / "a.pt", patches=[("autocast", {"dtype": "bfloat16"})])
    assert done.code == 0, done.errors
    assert done.said("loss_dtype") == "torch.float32"
    assert done.losses != baseline.losses
    assert done.losses == pytest.approx(baseline.losses, rel=0.1)
    assert done.reports["autocast", 0]["details"] == {"models": 1, "forwards": 18}


def test_channels_last_is_the_layout_inside_and_keeps_names(tmp_path: Path) -> None:
    plain = run(tmp_path / "a", "images")
    done = run(tmp_path / "b", "images", patches=[("channels_last", {})])
    assert (plain.said("channels_last"), done.said("channels_last")) == ("False", "True")
    assert done.said("names") == plain.said("names")
    assert done.losses == pytest.approx(plain.losses, rel=1e-5)


def test_checkpointing_takes_the_blocks_of_all_stages_and_counts_a_batch_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = run(tmp_path / "a" / "recording", "two_stages", tmp_path / "a" / "m.pt")
    done = run(
        tmp_path / "b" / "recording",
        "two_stages",
        tmp_path / "b" / "m.pt",
        patches=[("activation_checkpointing", {"every": 1})],
    )
    assert done.code == 0, done.errors
    assert done.reports["activation_checkpointing", 0]["details"] == {"blocks": 4, "forwards": 20}
    assert done.losses == plain.losses
    assert _hash(tmp_path / "b" / "m.pt") == _hash(
        tmp_path / "a" / "m.pt"
    )  # with the running statistics of the batch norms


def test_patches_that_do_not_fit_say_why_and_change_nothing(baseline: Done, tmp_path: Path) -> None:
    patches: list[tuple[str, dict[str, Any]]] = [
        ("channels_last", {}),
        ("non_blocking_copies", {}),
        ("keep_cache", {}),
        ("ddp", {"bucket_cap_mb": 100}),
        ("ddp_no_sync", {"passes": 2}),
        ("ddp_hook", {"hook": "topk"}),
        ("fsdp2", {"reshard_after_forward": False}),
        ("fsdp2_no_sync", {"passes": 2}),
        ("fused_attention", {"implementation": "sdpa"}),
        ("fp8", {"library": "torchao"}),
        ("liger_kernels", {}),
        ("xformers_attention", {}),
        ("optimizer_8bit", {"library": "bitsandbytes"}),
        ("bind_cores", {"by": "exclusive"}),
        ("garbage_collection", {"how": "off", "after": 19}),
        ("dataloader", {"pin_memory": True}),
        ("of_the_future", {}),
    ]
    done = run(tmp_path / "recording", "plain", tmp_path / "a.pt", patches=patches)
    assert done.code == 0, done.errors
    assert done.losses == baseline.losses
    reasons = {name: done.reports[name, 0]["reason"] for name, _ in patches}
    assert not any(report["applied"] for report in done.reports.values())
    assert reasons == {
        "channels_last": "a model has no 2-d convolutions",
        "non_blocking_copies": "there is no GPU to copy to",
        "keep_cache": "the script never emptied the cache",
        "ddp": "no DistributedDataParallel was made",
        "ddp_no_sync": "no DistributedDataParallel was trained",
        "ddp_hook": "no DistributedDataParallel was trained",
        "fsdp2": "nothing was sharded by fully_shard",
        "fsdp2_no_sync": "a model is not sharded by fully_shard",
        "fused_attention": "no model of transformers was built",
        "fp8": "the package torchao is not installed",
        "liger_kernels": "the package liger_kernel is not installed",
        "xformers_attention": "the package xformers is not installed",
        "optimizer_8bit": "the package bitsandbytes is not installed",
        "bind_cores": "the local rank and the number of ranks on this host are unknown",
        "garbage_collection": "fewer than 19 steps were made",
        "dataloader": "pin_memory needs a GPU",
        "of_the_future": "this version has no such patch",
    }
    assert done.log == ""


@pytest.mark.parametrize("text", ["no json", '{"name": 3}', "[3]"])
def test_patches_that_cannot_be_read_leave_the_job_as_it_was(baseline: Done, tmp_path: Path, text: str) -> None:
    done = run(tmp_path / "recording", "plain", tmp_path / "a.pt", FLATOUT_PATCHES=text)
    assert (done.code, done.losses) == (0, baseline.losses)
    assert "error in apply_patches" in done.log


@pytest.mark.parametrize(("kind", "workers", "is_kept"), [("map", 3, True), ("iterable", 1, True)])
def test_loaders_of_each_kind_get_the_workers_that_they_may_have(
    tmp_path: Path, kind: str, workers: int, is_kept: bool
) -> None:
    wanted = {"num_workers": 3, "persistent_workers": True}
    plain = run(tmp_path / "a", "load", kind)
    done = run(tmp_path / "b", "load", kind, patches=[("dataloader", wanted)])
    assert done.code == 0, done.errors
    assert done.losses == plain.losses
    assert (plain.said("workers"), done.said("workers")) == ("0", str(workers))
    assert done.said("kept") == str(is_kept)


@pytest.mark.parametrize(("method", "used"), [("spawn", "forkserver"), ("", "default")])
def test_workers_that_are_spawned_are_forked_from_a_server(tmp_path: Path, method: str, used: str) -> None:
    wanted = {"num_workers": 1, "multiprocessing_context": "forkserver"}
    plain = run(tmp_path / "a", "load", "map", method)
    done = run(tmp_path / "b", "load", "map", method, patches=[("dataloader", wanted)])
    assert (done.code, done.losses) == (0, plain.losses), done.errors
    assert (done.said("method"), done.said("workers")) == (used, "1")
    assert ("torch" in done.said("preloaded").split()) is (method == "spawn"), "else each worker imports it"
    note = "the workers of a loader are not spawned, so they start as before"
    assert (note in done.reports["dataloader", 0]["notes"]) is (method == "")


def test_a_dataset_that_no_worker_can_read_is_read_as_before(tmp_path: Path) -> None:
    plain = run(tmp_path / "a", "load", "only-here")
    done = run(tmp_path / "b", "load", "only-here", patches=[("dataloader", {"num_workers": 2})])
    assert done.code == 0, done.errors
    assert done.losses == plain.losses
    assert done.reports["dataloader", 0]["details"]["fallbacks"] == 1


def test_a_dataset_that_cannot_be_sent_to_spawned_workers_gets_none(tmp_path: Path) -> None:
    plain = run(tmp_path / "a", "load", "local", "spawn")
    patches = [("dataloader", {"num_workers": 2})]
    done = run(tmp_path / "b", "load", "local", "spawn", patches=patches)
    assert (done.code, done.losses) == (0, plain.losses), done.errors
    assert "a dataset cannot be sent to workers that are spawned" in done.reports["dataloader", 0]["notes"]
