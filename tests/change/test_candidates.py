"""What is proposed for which diagnosis, in which order, with which bound."""

from __future__ import annotations

import msgspec
import pytest
from tests.change.jobs import EVERY_KIND, SOCKET_JOB, diagnosis, facts

from flatout.change.candidates import candidates, regular_share
from flatout.change.catalogue import all_changes
from flatout.change.dataloader import PINNED, WORKERS, lacks_cores, worker_counts
from flatout.change.process import thread_counts
from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts
from flatout.records.diagnosis import Diagnosis


def names(changes: list[Change]) -> list[str]:
    return [change.name for change in changes]


def knobs(changes: list[Change]) -> set[str]:
    return {change.knob.name for change in changes}


SLOW_NETWORK = diagnosis({"exposed-communication": 0.2})


def test_large_messages_over_sockets_get_threads_sockets_and_channels() -> None:
    first = candidates(SLOW_NETWORK, SOCKET_JOB)[0]
    assert first.name == "nccl-sockets=2x2+8"
    assert first.environment == {
        "NCCL_SOCKET_NTHREADS": "2",
        "NCCL_NSOCKS_PERTHREAD": "2",
        "NCCL_MIN_NCHANNELS": "8",
    }
    assert first.predicted_speedup == pytest.approx(5.0)
    assert first.predicted_from == ("exposed-communication",)
    assert {"nccl-sockets", "ddp-bucket"} <= knobs(candidates(SLOW_NETWORK, SOCKET_JOB))


@pytest.mark.parametrize(
    ("transport", "has_channels"),
    [("socket", False), (None, False), ("nvlink", True), ("infiniband", True), ("pcie", True), ("shared_memory", True)],
)
def test_more_channels_alone_are_not_proposed_over_sockets(transport: str | None, has_channels: bool) -> None:
    """They lowered an all-reduce of 256 MB there from 2.9 to 2.15 GB/s; an unknown transport may be sockets."""
    assert ("nccl-channels" in knobs(candidates(SLOW_NETWORK, facts(transport=transport)))) == has_channels


def test_small_messages_over_sockets_get_none_of_it() -> None:
    proposed = candidates(SLOW_NETWORK, facts(collective_bytes=16 * 1024))
    assert not any(change.family == "nccl" for change in proposed)
    assert not any(name.startswith("NCCL_") for change in proposed for name in change.environment)


@pytest.mark.parametrize("transport", ["nvlink", "infiniband", "pcie", None])
def test_socket_settings_are_for_sockets_only(transport: str | None) -> None:
    assert "nccl-sockets" not in knobs(candidates(SLOW_NETWORK, facts(transport=transport)))


def test_other_transports_get_their_own() -> None:
    several = facts(transport="infiniband", num_hosts=4)
    assert {"nccl-queue-pairs", "nccl-channels", "nccl-buffer"} <= knobs(candidates(SLOW_NETWORK, several))
    assert "nccl-no-nvls" in knobs(candidates(SLOW_NETWORK, facts(transport="nvlink")))
    assert "nccl-no-nvls" not in knobs(candidates(SLOW_NETWORK, facts(transport="nvlink", gpu_arch=8.0)))


def test_socket_threads_take_no_more_cores_than_a_rank_has() -> None:
    few = candidates(SLOW_NETWORK, facts(cores_allowed=8.0))
    assert [c.value for c in few if c.knob.name == "nccl-sockets"] == ["2x2+8", "1x1+16", "2x8+8"]


# ---- garbage collection ----

COLLECTIONS = diagnosis({"garbage-collection": 0.1}, step_s=0.25)


@pytest.mark.parametrize("collects", [True, None])  # None: a recording of an older version, or traces alone
def test_garbage_collection_gets_a_frozen_heap_no_collector_or_collections_together(collects: bool | None) -> None:
    proposed = [c for c in candidates(COLLECTIONS, facts(collects_automatically=collects)) if c.patch is not None]
    assert names(proposed) == ["gc-freeze", "gc-off", "gc-together=50", "gc-together=500"]
    # 0.1 of 0.25 s: all of it, or 95 % of it.
    assert [c.predicted_speedup for c in proposed] == pytest.approx([0.25 / 0.15, 0.25 / 0.15, *2 * [0.25 / 0.155]])
    assert {c.predicted_from for c in proposed} == {("garbage-collection",)}


def test_a_script_that_decides_itself_when_to_collect_gets_a_frozen_heap_only() -> None:
    """Its own collections examine fewer objects then; turning off what it has turned off changes nothing."""
    proposed = candidates(COLLECTIONS, facts(collects_automatically=False))
    assert names(proposed) == ["gc-freeze"]


def test_one_of_the_three_excludes_the_others() -> None:
    freeze = candidates(COLLECTIONS, SOCKET_JOB)[0]
    assert freeze.name == "gc-freeze"
    assert candidates(COLLECTIONS, SOCKET_JOB, applied=[freeze]) == []


# ---- safety ----


@pytest.mark.parametrize("kind", range(len(EVERY_KIND)))
def test_only_exact_changes_are_proposed_unless_more_is_allowed(kind: int) -> None:
    costs = {name: 0.01 for change in all_changes(EVERY_KIND[kind]) for name in change.knob.answers}
    everything = diagnosis(costs, parts={"compute": 0.1})
    assert {c.safety for c in candidates(everything, EVERY_KIND[kind])} == {"exact"}
    assert {c.safety for c in candidates(everything, EVERY_KIND[kind], "rounding")} <= {"exact", "rounding"}


def test_rounding_brings_compression_to_a_slow_network() -> None:
    proposed = candidates(SLOW_NETWORK, SOCKET_JOB, "rounding")
    compression = [c for c in proposed if c.knob.name == "ddp-compression"]
    assert compression[0].patch is not None
    assert compression[0].patch.parameters == {"hook": "bf16"}
    assert "ddp-compression" not in knobs(candidates(SLOW_NETWORK, facts(gradient_element_bytes=2), "rounding"))


# ---- bounds and order ----


def test_no_cause_no_candidate() -> None:
    assert candidates(diagnosis({}), SOCKET_JOB) == []
    assert candidates(diagnosis({"pipeline-bubble": 0.1}), SOCKET_JOB) == []


def test_the_larger_cost_comes_first_and_the_bound_follows_it() -> None:
    both = candidates(diagnosis({"data-loading": 0.12, "exposed-communication": 0.02}), SOCKET_JOB)
    assert both[0].name == "dataloader-workers=15"
    assert both[0].predicted_speedup == pytest.approx(0.25 / 0.13)
    bounds = [change.predicted_speedup or 0 for change in both]
    assert bounds == sorted(bounds, reverse=True)
    assert min(bounds) >= 1.01
    assert {"nccl-sockets"} <= knobs(both)


def test_a_bound_stays_finite_where_a_finding_costs_the_whole_step() -> None:
    assert candidates(diagnosis({"data-loading": 0.25}), SOCKET_JOB)[0].predicted_speedup == pytest.approx(100)


def test_general_changes_are_bounded_by_the_part_they_work_on() -> None:
    images = facts(has_convolutions=True, wrapper=None, is_autocast=False)
    busy = diagnosis({}, parts={"compute": 0.2})
    channels = next(c for c in candidates(busy, images) if c.knob.name == "channels-last")
    assert channels.predicted_speedup == pytest.approx(0.25 / 0.15)
    assert channels.predicted_from == ("compute",)
    assert "autocast" not in knobs(candidates(busy, images))
    assert "autocast" in knobs(candidates(busy, images, "rounding"))


def recorded(made: Diagnosis, **values: float) -> Diagnosis:
    return msgspec.structs.replace(made, job=msgspec.structs.replace(made.job, **values))


@pytest.mark.parametrize(("traced_share", "share"), [(0.5, 0.5), (0.0, 0.4)])
def test_the_share_of_the_regular_step_is_that_of_the_diagnosis(traced_share: float, share: float) -> None:
    """Without a trace, its share of the job is 0, so the median step is compared with the mean step."""
    made = recorded(diagnosis({}), mean_step_s=0.5, regular_step_s=0.2, traced_share=traced_share)
    assert regular_share(made) == share


def test_a_bound_is_of_the_job_not_of_its_traced_step() -> None:
    """A loader that is 2 % of the traced step, and 90 % of the job's time: the bound is a tenfold speedup."""
    made = diagnosis({"data-loading": 0.005})
    stalls = tuple(msgspec.structs.replace(finding, share_of_step=0.9) for finding in made.findings)
    made = recorded(msgspec.structs.replace(made, findings=stalls), mean_step_s=2.5, regular_step_s=0.25)
    assert candidates(made, SOCKET_JOB)[0].predicted_speedup == pytest.approx(10)


def test_a_part_of_a_step_is_a_smaller_part_of_a_job_that_stalls() -> None:
    """All of 0.2 s of compute in a regular step of 0.25 s halves: 40 % of the step, 20 % of a job that stalls half."""
    images = facts(has_convolutions=True, wrapper=None, is_autocast=False)
    busy = recorded(diagnosis({}, parts={"compute": 0.2}), mean_step_s=0.5, regular_step_s=0.25)
    channels = next(c for c in candidates(busy, images) if c.knob.name == "channels-last")
    assert channels.predicted_speedup == pytest.approx(1 / (1 - 0.2))


def test_a_bound_does_not_count_the_wait_for_the_first_batch() -> None:
    """Ten steps of 1 s on average, of which the first waited 6 s: half of the other 4 s is data loading."""
    made = diagnosis({"data-loading": 0.2}, step_s=1.0)
    made = recorded(made, mean_step_s=1.0, first_wait_s=6.0, num_recorded_steps=10, traced_share=0.4)
    assert made.findings[0].share_of_step == 0.2
    assert candidates(made, SOCKET_JOB)[0].predicted_speedup == pytest.approx(2)
    assert regular_share(made) == pytest.approx(1.0)


@pytest.mark.parametrize(("longer_s", "share"), [(0.12, 0.4 / 0.62), (0.13, 0.8)])
def test_a_stall_among_the_traced_steps_does_not_lower_the_bound(longer_s: float, share: float) -> None:
    """A traced step of more than 1.5 times the shortest holds a stall: the part's share is that of the others.

    Each step of 0.25 s has 0.2 s of compute; the second one takes longer by a multiple of it.
    """
    images = facts(has_convolutions=True, wrapper=None, is_autocast=False)
    busy = diagnosis({}, parts={"compute": 0.2})
    (rank,) = busy.ranks
    (step,) = rank.steps
    stalled = msgspec.structs.replace(step, step=2, window_s=0.25 + longer_s)
    busy = msgspec.structs.replace(busy, ranks=(msgspec.structs.replace(rank, steps=(step, stalled), num_steps=2),))
    channels = next(c for c in candidates(busy, images) if c.knob.name == "channels-last")
    bound_of_half = 1 / (1 - share / 2)
    assert channels.predicted_speedup == pytest.approx(bound_of_half)


def test_without_steps_the_window_stands_for_one() -> None:
    made = diagnosis({"data-loading": 0.1}, step_s=0.2)
    without = msgspec.structs.replace(
        made,
        job=msgspec.structs.replace(made.job, step_s=None, num_steps=0),
        ranks=tuple(msgspec.structs.replace(rank, steps=(), step_s=None) for rank in made.ranks),
    )
    assert candidates(without, SOCKET_JOB)[0].predicted_speedup == pytest.approx(2)


def test_unknown_facts_bring_only_what_needs_none() -> None:
    assert candidates(SLOW_NETWORK, JobFacts()) == []
    assert knobs(candidates(diagnosis({"checkpoint-stall": 0.1}), JobFacts())) == {"background-checkpoint"}


def test_what_the_jobs_environment_says_already_is_not_proposed() -> None:
    on = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "2", "NCCL_MIN_NCHANNELS": "8"}
    names = {change.name for change in candidates(SLOW_NETWORK, facts(environment=on))}
    assert "nccl-sockets=2x2+8" not in names
    assert "nccl-sockets=4x1+8" in names
    over_nvlink = {change.name for change in candidates(SLOW_NETWORK, facts(environment=on, transport="nvlink"))}
    assert "nccl-channels=8" not in over_nvlink
    assert "nccl-channels=16" in over_nvlink


def test_for_memory_those_that_save_it_are_proposed() -> None:
    proposed = candidates(diagnosis({}), facts(has_convolutions=True, is_autocast=False), "rounding", for_memory=True)
    assert {"activation-checkpointing", "autocast", "channels-last", "ddp-bucket-view"} <= knobs(proposed)
    assert all(change.predicted_speedup is None for change in proposed)


def test_for_memory_those_that_save_most_come_first() -> None:
    proposed = candidates(diagnosis({}), facts(has_convolutions=True, is_autocast=False), "rounding", for_memory=True)
    names = list(dict.fromkeys(change.knob.name for change in proposed))
    assert names.index("activation-checkpointing") < names.index("autocast") < names.index("channels-last")


# ---- what is on already ----


def change(name: str, of: JobFacts = SOCKET_JOB) -> Change:
    return next(one for one in all_changes(of) if one.name == name)


def test_what_requires_another_change_comes_when_that_one_is_on() -> None:
    starved = diagnosis({"data-loading": 0.1})
    assert not knobs(candidates(starved, SOCKET_JOB)) & {"dataloader-prefetch", "dataloader-persistent-workers"}
    after = candidates(starved, SOCKET_JOB, applied=[change("dataloader-workers=15")])
    assert {"dataloader-prefetch", "dataloader-persistent-workers"} <= knobs(after)
    workers = {one.name for one in after if one.knob.name == "dataloader-workers"}
    assert workers and "dataloader-workers=15" not in workers, "another value may come in the place of what is on"
    assert "dataloader-prefetch" in knobs(candidates(starved, facts(loader_workers=4)))


def test_what_is_excluded_by_a_change_that_is_on_is_left_out() -> None:
    over_nvlink = facts(transport="nvlink")
    assert "nccl-channels" in knobs(candidates(SLOW_NETWORK, over_nvlink))
    applied = [change("nccl-max-ctas=16", over_nvlink)]
    assert "nccl-channels" not in knobs(candidates(SLOW_NETWORK, over_nvlink, applied=applied))


def test_what_the_script_does_already_is_not_proposed() -> None:
    slow = diagnosis({"small-kernels": 0.1, "memory-copy": 0.1})
    assert "optimizer-fused" not in knobs(candidates(slow, SOCKET_JOB))
    assert "optimizer-fused" in knobs(candidates(slow, facts(optimizer_is_fused=False)))
    assert "optimizer-fused" not in knobs(candidates(slow, facts(optimizer_is_fused=False, optimizer="Muon")))
    assert "dataloader-pin-memory" not in knobs(candidates(slow, facts(loader_pins_memory=True)))


def test_static_graph_is_never_proposed_with_accumulation_nor_where_that_is_unknown() -> None:
    costly = diagnosis({"exposed-communication": 0.1, "redundant-gradient-sync": 0.1})
    assert "ddp-static-graph" in knobs(candidates(costly, SOCKET_JOB))
    for passes in (2, 8, None):
        proposed = knobs(candidates(costly, facts(passes_per_step=passes)))
        assert "ddp-static-graph" not in proposed
        assert ("ddp-no-sync" in proposed) is (passes is not None)


# ---- cores ----


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [
        (64.0, 4, (15, 7, 3, 2)),
        (16.0, 1, (15, 7, 3, 2)),
        (8.0, 4, (1,)),
        (2.0, 2, (1,)),
        (3.5, 1, (2, 1)),
        (0.5, 1, (1,)),
        (400.0, 2, (32, 16, 8, 2)),
        (None, 2, ()),
    ],
)
def test_workers_come_from_the_cores_that_the_control_group_allows(
    cores: float | None, ranks: int, expected: tuple[int, ...]
) -> None:
    counts = worker_counts(facts(cores_allowed=cores, ranks_per_host=ranks))
    assert counts == expected
    if cores is not None and cores >= 2 * ranks:
        assert all(ranks * (count + 1) <= cores for count in counts)


@pytest.mark.parametrize(
    ("workers", "cores", "share", "lacks"),
    [(1, 2.0, 1.0, True), (1, 4.0, 1.0, False), (2, 4.0, 1.0, True), (2, 4.0, 0.2, False), (1, None, 1.0, False)],
)
def test_workers_that_compute_need_a_core_beside_that_of_the_rank(
    workers: int, cores: float | None, share: float, lacks: bool
) -> None:
    two_ranks = facts(cores_allowed=cores, ranks_per_host=2, loader_cpu_share=share)
    change = setting(WORKERS, workers, patch="dataloader", num_workers=workers)
    assert lacks_cores(change, two_ranks) is lacks
    assert not lacks_cores(setting(PINNED, patch="dataloader", pin_memory=True), two_ranks)


@pytest.mark.parametrize(("others", "most"), [(0.0, 7), (0.7, 7), (0.9, 6), (4.0, 4), (8.0, 3), (40.0, 1)])
def test_workers_leave_the_cores_to_other_programs(others: float, most: int) -> None:
    """Less than a tenth of the eight cores is the system's own noise."""
    assert max(worker_counts(facts(cores_allowed=8.0, ranks_per_host=1, cores_busy_by_others=others))) == most


def test_the_number_of_workers_that_the_script_has_is_not_proposed() -> None:
    assert worker_counts(facts(loader_workers=15)) == (7, 3, 2)


@pytest.mark.parametrize(
    ("cpu_share", "expected"),
    [
        (None, (1,)),  # unknown
        (0.51, (1,)),
        (0.49, (2, 1)),  # two workers keep one core busy
        (0.25, (4, 2, 1)),
        (0.069, (8, 4, 2)),  # a loader that was recorded: 2 ms of waiting for each of 16 samples
        (0.0, (8, 4, 2)),
    ],
)
def test_workers_that_wait_may_be_more_than_the_cores(cpu_share: float | None, expected: tuple[int, ...]) -> None:
    """Two ranks share two cores."""
    assert worker_counts(facts(cores_allowed=2.0, ranks_per_host=2, loader_cpu_share=cpu_share)) == expected


@pytest.mark.parametrize(("num_workers", "expected"), [(0, (1,)), (1, ()), (4, ())])
def test_an_iterable_data_set_is_never_offered_several_workers(num_workers: int, expected: tuple[int, ...]) -> None:
    """Each of them would yield all samples."""
    assert worker_counts(facts(loader_is_iterable=True, loader_workers=num_workers, loader_cpu_share=0.1)) == expected


@pytest.mark.parametrize(
    ("draws", "keeps_state", "safety"),
    [
        (False, False, "exact"),
        (True, False, "semantic"),
        (False, True, "semantic"),
        (None, False, "semantic"),
        (False, None, "semantic"),
        (None, None, "semantic"),
    ],
)
def test_workers_that_live_on_are_exact_only_without_state_and_draws(
    draws: bool | None, keeps_state: bool | None, safety: str
) -> None:
    known = facts(loader_workers=2, loader_draws=draws, loader_keeps_state=keeps_state)
    (persistent,) = [c for c in all_changes(known) if c.knob.name == "dataloader-persistent-workers"]
    assert persistent.safety == safety


@pytest.mark.parametrize(
    ("method", "is_offered"), [("spawn", True), ("fork", False), ("forkserver", False), (None, False)]
)
def test_workers_that_are_spawned_can_start_from_a_fork_server(method: str | None, is_offered: bool) -> None:
    job = facts(loader_workers=2, loader_start_method=method)
    proposed = names(candidates(diagnosis({"epoch-boundary": 0.1}), job))
    assert ("dataloader-fork-server" in proposed) is is_offered


def test_threads_share_the_allowed_cores() -> None:
    assert thread_counts(facts(cores_allowed=64.0)) == (16, 8)
    assert thread_counts(facts(cores_allowed=2.0, ranks_per_host=2)) == ()  # it has one already
    assert thread_counts(facts(cores_allowed=2.0, ranks_per_host=2, threads_per_rank=64)) == (1,)
    on_cpu = facts(device="cpu", cores_allowed=8.0, ranks_per_host=2, backend="gloo")
    proposed = candidates(diagnosis({}, parts={"compute": 0.2}), on_cpu)
    assert names(proposed)[:2] == ["threads-cpu=4", "threads-cpu=2"]
    assert proposed[0].environment == {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}


def test_the_allocators_own_settings_are_kept() -> None:
    own = facts(environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:False"})
    change = next(c for c in all_changes(own) if c.knob.name == "allocator-expandable")
    assert change.environment == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"}


def test_no_bucket_is_larger_than_all_gradients_need() -> None:
    small = candidates(SLOW_NETWORK, facts(gradient_bytes=60 << 20))
    assert [c.value for c in small if c.knob.name == "ddp-bucket"] == ["100", "50"]


@pytest.mark.parametrize(
    ("load", "cpu_share", "expected"),
    [
        (3.2, 0.07, (4, 8, 2)),  # 1.25 times 3.2 is just 4
        (3.21, 0.07, (5, 8, 4, 2)),
        (100.0, 0.07, (8, 4, 2)),  # more than the cores can run
        (0.1, 0.07, (1, 8, 4, 2)),
        (None, 0.07, (8, 4, 2)),
        (3.2, 0.9, (1,)),  # batches are computed: cores decide
    ],
)
def test_a_loader_that_waits_is_first_offered_the_workers_that_keep_up_with_the_step(
    load: float | None, cpu_share: float, expected: tuple[int, ...]
) -> None:
    job = facts(cores_allowed=2.0, ranks_per_host=2, loader_cpu_share=cpu_share, loader_load=load)
    assert worker_counts(job) == expected


@pytest.mark.parametrize(
    ("workers", "cores", "stays", "is_proposed"), [(6, 2, False, True), (6, 2, True, False), (2, 2, False, False)]
)
def test_fewer_workers_start_sooner_where_there_are_more_than_cores(
    workers: int, cores: int, stays: bool, is_proposed: bool
) -> None:
    """Lightning-AI/pytorch-lightning#1884: epochs of MNIST start slowly with many workers and several ranks."""
    job = facts(
        loader_workers=workers,
        cores_allowed=2.0 * cores,
        ranks_per_host=2,
        loader_is_iterable=False,
        loader_has_persistent_workers=stays,
        loader_best_workers=None,
    )
    proposed = [
        change for change in candidates(diagnosis({"epoch-boundary": 0.1}), job) if change.family == "dataloader"
    ]
    fewer = [change for change in proposed if change.knob.name == "dataloader-workers"]
    assert bool(fewer) == is_proposed
    assert all(change.patch.parameters["num_workers"] < workers for change in fewer if change.patch)
