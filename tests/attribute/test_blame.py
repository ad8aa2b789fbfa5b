"""Exposed waits charged to the rank and the part that began them. Expected numbers are counted by hand, in us."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import attributed, blame_us, exposed_wait_us, parts_us

from flatout.records.diagnosis import Part
from flatout.testing import TraceBuilder


def blame(*traces: TraceBuilder) -> dict[tuple[int, int, str], float]:
    """Blame without crumbs below 1 us."""
    return {cause: us for cause, us in blame_us(attributed(*traces)).items() if us >= 1}


def by_rank(charges: dict[tuple[int, int, str], float]) -> dict[tuple[int, int], float]:
    sums: dict[tuple[int, int], float] = {}
    for (waiting, late, _), us in charges.items():
        sums[waiting, late] = sums.get((waiting, late), 0) + us
    return sums


# --- one cause


def waiter(late_by: float, *, rank: int = 0, world_size: int = 2) -> TraceBuilder:
    """Computes 100 us and then waits `late_by` at the all-reduce, which ends at 500."""
    trace = TraceBuilder(rank, world_size).step(1, 0, 1000)
    return trace.launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 390)


def test_a_rank_late_by_its_compute_is_blamed_for_compute() -> None:
    late = TraceBuilder(1).step(1, 0, 1000)
    late.launch("gemm", 0, 5, 5, 300).collective("allreduce", 5, 310, 190)
    assert blame(waiter(200), late) == {(0, 1, "compute"): 200}


def test_a_rank_late_by_its_data_loading_is_blamed_for_data_loading() -> None:
    late = TraceBuilder(1).step(1, 0, 1000).data_loading(0, 200)
    late.launch("gemm", 200, 5, 205, 100).collective("allreduce", 205, 310, 190)
    assert blame(waiter(200), late) == {(0, 1, "data_loading"): 200}


def test_the_root_of_a_broadcast_does_not_wait_so_both_ranks_are_not_in_sync_after_it() -> None:
    """Rank 0 sends its buffers and goes on; rank 1 loads data until 300, and only then receives them."""
    root = TraceBuilder(0).step(1, 0, 2000).collective("broadcast", 5, 10, 20, root=0)
    root.launch("gemm", 60, 5, 100, 50).collective("allreduce", 105, 160, 440)
    late = TraceBuilder(1).step(1, 0, 2000).data_loading(0, 300).collective("broadcast", 300, 310, 20, root=0)
    late.launch("gemm", 350, 5, 400, 50).collective("allreduce", 405, 460, 140)
    charges = {cause: us for cause, us in blame(root, late).items() if cause[:2] == (0, 1)}
    assert charges[0, 1, "data_loading"] / sum(charges.values()) > 0.8


LOADER_THREAD = 77


def test_a_rank_late_by_a_loader_in_a_thread_of_its_own_is_blamed_for_data_loading() -> None:
    """As `DataLoaderX` does: the training thread waits at a queue, and goes on when the loader has a batch."""
    late = TraceBuilder(1).step(1, 0, 1000).op("aten::zero_", 0, 10)
    late.data_loading(0, 200, thread=LOADER_THREAD).launch("gemm", 200, 5, 205, 100).collective(
        "allreduce", 205, 310, 190
    )
    charges = blame(waiter(200), late)
    assert charges[0, 1, "data_loading"] >= 180
    assert sum(charges.values()) == pytest.approx(200)


@pytest.mark.parametrize(("ends_at_us", "part"), [(1_100, "data_loading"), (900, "host_launch")])
def test_a_thread_that_goes_on_long_after_the_batch_did_not_wait_for_it(ends_at_us: float, part: str) -> None:
    """The hand-over to another thread takes at most 6 ms."""
    begins = 7_000.0
    late = TraceBuilder(1).step(1, 0, 20_000).op("aten::zero_", 0, 10)
    late.data_loading(0, ends_at_us, thread=LOADER_THREAD).launch("gemm", begins, 5, begins + 5, 100)
    late.collective("allreduce", begins + 5, begins + 110, 190)
    early = (
        TraceBuilder(0).step(1, 0, 20_000).launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, begins + 190)
    )
    assert (0, 1, "data_loading") in blame(early, late) or part == "host_launch"
    assert ((0, 1, "data_loading") in blame(early, late)) is (part == "data_loading")


def test_a_loader_that_is_ahead_in_its_own_thread_is_no_cause() -> None:
    late = TraceBuilder(1).step(1, 0, 20_000).op("aten::zero_", 0, 10).data_loading(0, 50, thread=LOADER_THREAD)
    late.launch("gemm", 10_000, 5, 10_005, 100).collective("allreduce", 10_005, 10_110, 190)
    early = TraceBuilder(0).step(1, 0, 20_000).launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 10_190)
    assert (0, 1, "data_loading") not in blame(early, late)


def test_a_rank_late_by_its_host_is_blamed_for_launch_work() -> None:
    late = TraceBuilder(1).step(1, 0, 1000)
    late.launch("gemm", 200, 5, 205, 100).collective("allreduce", 205, 310, 190)
    assert blame(waiter(200), late) == {(0, 1, "host_launch"): 200}


def test_a_rank_late_by_its_allocator_is_blamed_for_it() -> None:
    late = TraceBuilder(1).step(1, 0, 1000).malloc(0, 150).free(150, 50)
    late.launch("gemm", 200, 5, 205, 100).collective("allreduce", 205, 310, 190)
    assert blame(waiter(200), late) == {(0, 1, "allocator"): 200}


def test_a_rank_late_by_a_copy_is_blamed_for_it() -> None:
    late = TraceBuilder(1).step(1, 0, 1000)
    late.copy("HtoD", num_bytes=4096, launch_at=0, launch_duration=5, start=5, duration=200)
    late.launch("gemm", 6, 4, 205, 100).collective("allreduce", 10, 310, 190)
    assert blame(waiter(200), late) == {(0, 1, "memory_copy"): 200}


def test_a_rank_late_by_a_checkpoint_is_blamed_for_it() -> None:
    late = TraceBuilder(1).step(1, 0, 1000).annotation("torch.save", 0, 200)
    late.launch("gemm", 200, 5, 205, 100).collective("allreduce", 205, 310, 190)
    assert blame(waiter(200), late) == {(0, 1, "checkpoint"): 200}


def test_what_the_late_rank_does_after_it_arrived_is_no_cause() -> None:
    late = TraceBuilder(1).step(1, 0, 1000)
    late.launch("gemm", 0, 5, 5, 300).collective("allreduce", 5, 310, 190).data_loading(320, 170)
    assert blame(waiter(200), late) == {(0, 1, "compute"): 200}


def test_what_the_waiting_rank_does_as_well_is_no_cause() -> None:
    """Both load data for 100 us; one of them computes longer."""
    early, late = (TraceBuilder(rank).step(1, 0, 1000).data_loading(0, 100) for rank in (0, 1))
    early.launch("gemm", 100, 5, 105, 50).collective("allreduce", 105, 160, 340)
    late.launch("gemm", 100, 5, 105, 290).collective("allreduce", 105, 400, 100)
    assert blame(early, late) == {(0, 1, "compute"): 240}


# --- several causes


def test_several_causes_share_a_wait_in_proportion_to_their_excess() -> None:
    """Late by 100 us of loading and 300 us of compute: a wait of 400 us is a quarter and three quarters."""
    late = TraceBuilder(1).step(1, 0, 1000).data_loading(0, 100)
    late.launch("gemm", 100, 5, 105, 400).collective("allreduce", 105, 510, 90)
    early = TraceBuilder(0).step(1, 0, 1000).launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 490)
    assert blame(early, late) == {(0, 1, "data_loading"): 100, (0, 1, "compute"): 300}


def test_what_the_late_rank_spent_less_on_is_not_counted_against_its_causes() -> None:
    """Late by 400 us of loading and 200 us of host work, and 200 us quicker in compute: 400 us, in two to one."""
    late = TraceBuilder(1).step(1, 0, 1000).data_loading(0, 400)
    late.launch("gemm", 600, 5, 605, 100).collective("allreduce", 605, 710, 90)
    early = TraceBuilder(0).step(1, 0, 1000).launch("gemm", 0, 5, 5, 300).collective("allreduce", 5, 310, 490)
    charges = blame(early, late)
    assert charges == pytest.approx({(0, 1, "data_loading"): 800 / 3, (0, 1, "host_launch"): 400 / 3}, abs=2)
    assert sum(charges.values()) == 400


def test_each_waiting_rank_is_compared_with_the_late_one_on_its_own() -> None:
    """Rank 1 loads data too, so it waits for the compute of rank 2 alone."""
    traces = [TraceBuilder(rank, 3).step(1, 0, 1000) for rank in range(3)]
    traces[0].launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 490)
    traces[1].data_loading(0, 150).launch("gemm", 150, 5, 155, 100).collective("allreduce", 155, 260, 340)
    traces[2].data_loading(0, 150).launch("gemm", 150, 5, 155, 350).collective("allreduce", 155, 510, 90)
    assert blame(*traces) == {(0, 2, "data_loading"): 150, (0, 2, "compute"): 250, (1, 2, "compute"): 250}


# --- since when


def test_a_hidden_wait_does_not_make_the_late_ranks_ordinary_compute_an_excess() -> None:
    """Rank 1 loads data for 300 us; rank 0 waits for its first bucket under its own backward.

    At the second bucket rank 1 has computed 395 us since the first ended, and rank 0 only 45: no excess of compute,
    since rank 0 had computed ahead.
    """
    early, late = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    early.launch("gemm", 0, 5, 5, 595).collective("allreduce", 6, 200, 355).collective("allreduce", 7, 600, 350)
    late.data_loading(0, 300).launch("gemm", 300, 5, 305, 595)
    late.collective("allreduce", 306, 505, 50).collective("allreduce", 307, 900, 50)
    job = attributed(early, late)
    assert exposed_wait_us(job, 0) == 300
    assert blame_us(job) == {(0, 1, "data_loading"): 300}


def test_a_rank_that_had_its_next_bucket_ready_was_not_level() -> None:
    """Rank 0 finished its backward during the hidden wait: its second bucket follows the first at once."""
    early, late = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    early.launch("gemm", 0, 5, 5, 400).collective("allreduce", 6, 200, 355).collective("allreduce", 7, 557, 343)
    late.data_loading(0, 300).launch("gemm", 300, 5, 305, 400)
    late.collective("allreduce", 306, 505, 50).collective("allreduce", 307, 710, 190)
    charges = blame(early, late)
    # Exposed are [405, 505) of the first and [557, 710) of the second.
    assert sum(charges.values()) == pytest.approx(100 + 153)
    assert charges[0, 1, "data_loading"] > 248


def test_a_rank_whose_next_bucket_follows_after_some_microseconds_was_not_level() -> None:
    """Rank 1 is late by 300 us of loading. Both compute 400 us, rank 0 all of it before its first bucket is reduced.

    Rank 0's second bucket begins 12 us after the first ended, as its host launches; rank 1 computes 210 us before it.
    """
    early, late = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    early.launch("gemm", 0, 5, 5, 400).collective("allreduce", 6, 200, 355).collective("allreduce", 560, 567, 343)
    late.data_loading(0, 300).launch("gemm", 300, 5, 305, 190).launch("gemm", 306, 4, 560, 210)
    late.collective("allreduce", 311, 500, 55).collective("allreduce", 313, 775, 135)
    charges = blame(early, late)
    # Exposed are [405, 500) of the first and [567, 775) of the second.
    assert sum(charges.values()) == pytest.approx(95 + 208)
    assert charges[0, 1, "data_loading"] > 280


def test_a_common_collective_is_found_behind_hundreds_of_others() -> None:
    """Ranks 0 and 1 are level at 450; then rank 0 has 300 collectives with rank 2 alone, and rank 1 computes longer."""
    a, b, c = (TraceBuilder(rank, 3).step(1, 0, 60_000) for rank in range(3))
    first, pair = {"group": "1", "group_ranks": (0, 1)}, {"group": "2", "group_ranks": (0, 2)}
    a.launch("gemm", 0, 5, 5, 90).collective("allreduce", 5, 100, 350, **first)
    b.data_loading(0, 300).launch("gemm", 300, 5, 305, 90).collective("allreduce", 305, 400, 50, **first)
    for number in range(300):
        at = 1000 + 150 * number
        for trace in (a, c):
            trace.collective("allreduce", at, at + 10, 50, **pair)
    a.launch("gemm", 50_000, 5, 50_005, 90).collective("allreduce", 50_005, 50_100, 5000, **first)
    b.launch("gemm", 500, 5, 505, 54_090).collective("allreduce", 505, 54_600, 500, **first)
    charges = blame(a, b, c)
    assert charges.pop((0, 1, "data_loading")) == 300
    assert charges == {(0, 1, "compute"): 4500}


def level_twice() -> list[TraceBuilder]:
    """Rank 1 loads data before the first all-reduce, [0, 300); rank 0 does host work before the second, [500, 700).

    Both stand still at the end of the first, at 450.
    """
    a, b = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    a.launch("gemm", 0, 5, 5, 90).collective("allreduce", 5, 100, 350)
    b.data_loading(0, 300).launch("gemm", 300, 5, 305, 90).collective("allreduce", 305, 400, 50)
    a.launch("gemm", 700, 5, 705, 90).collective("allreduce", 705, 800, 50)
    b.launch("gemm", 500, 5, 505, 90).collective("allreduce", 505, 600, 250)
    return [a, b]


def test_after_both_were_level_only_what_came_since_counts() -> None:
    assert blame(*level_twice()) == {(0, 1, "data_loading"): 300, (1, 0, "host_launch"): 200}


def test_ranks_that_pause_for_30_us_after_a_collective_are_level() -> None:
    """Rank 1 loads data for 300 us; both are level at 450. Then it computes 100 us longer before the second."""
    a, b = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    a.launch("gemm", 0, 5, 5, 90).collective("allreduce", 5, 100, 350)
    b.data_loading(0, 300).launch("gemm", 300, 5, 305, 90).collective("allreduce", 305, 400, 50)
    a.launch("gemm", 451, 4, 455, 20).collective("allreduce", 456, 480, 150)
    b.launch("gemm", 451, 4, 455, 120).collective("allreduce", 456, 580, 50)
    assert blame(a, b) == {(0, 1, "data_loading"): 300, (0, 1, "compute"): 100}


def test_lateness_from_before_a_collective_that_levelled_nobody_keeps_its_cause() -> None:
    """Rank 1 is late by loading at the first all-reduce, where rank 0 computes on, and by compute later as well."""
    early, late = (TraceBuilder(rank).step(1, 0, 1500) for rank in (0, 1))
    early.launch("gemm", 0, 5, 5, 500).collective("allreduce", 6, 100, 355).collective("allreduce", 7, 510, 590)
    late.data_loading(0, 300).launch("gemm", 300, 5, 305, 700)
    late.collective("allreduce", 306, 405, 50).collective("allreduce", 307, 1010, 90)
    assert blame(early, late) == {(0, 1, "data_loading"): 300, (0, 1, "compute"): 200}


def two_steps(world_size: int = 2) -> tuple[TraceBuilder, TraceBuilder]:
    """Rank 1 begins its second step 200 us after rank 0, which waits at the all-reduce of that step."""
    a, b = TraceBuilder(0, world_size), TraceBuilder(1, world_size)
    a.step(2, 600, 500).launch("gemm", 600, 5, 605, 100).collective("allreduce", 606, 710, 290)
    b.step(2, 800, 300).launch("gemm", 800, 5, 805, 100).collective("allreduce", 806, 910, 90)
    return a, b


def test_lateness_at_the_start_of_a_step_keeps_the_cause_that_it_had_in_the_step_before() -> None:
    a, b = two_steps()
    a.step(1, 0, 600).launch("gemm", 0, 5, 5, 590)
    b.step(1, 0, 800).data_loading(0, 200).launch("gemm", 200, 5, 205, 590)
    assert blame(a, b) == {(0, 1, "data_loading"): 200}


def test_lateness_that_a_collective_had_evened_out_is_no_cause_in_the_next_step() -> None:
    """In step 1 ranks 0 and 2 load data and rank 1 waits for it; all are level at 460.

    Then rank 1 alone does 200 us of host work. In step 2 the others wait for that, and not for the data loading.
    """
    a, b = two_steps(world_size=3)
    c = TraceBuilder(2, 3)
    c.step(2, 600, 500).launch("gemm", 600, 5, 605, 100).collective("allreduce", 606, 711, 289)
    for trace, load, end in ((a, 300, 600), (b, 0, 800), (c, 310, 600)):
        trace.step(1, 0, end).launch("gemm", load, 4, load + 5, 100)
        trace.collective("allreduce", load + 4, load + 110, 350 - load).launch("adam", 500, 4, 510, 90)
        if load:
            trace.data_loading(0, load)
    charges = blame(a, b, c)
    assert charges[1, 2, "data_loading"] == 310
    assert charges[0, 1, "host_launch"] == pytest.approx(200, abs=5)
    assert (0, 2, "data_loading") not in {key for key, us in charges.items() if us > 20}


def test_nobody_waits_for_itself() -> None:
    """Rank 1 waited for the loading of rank 0, nobody was level since, and then rank 1 is late by its host.

    That rank 1 had waited is an excess, but it is no reason why rank 0 waits now.
    """
    a, b = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    a.data_loading(0, 300).launch("gemm", 300, 5, 305, 100).collective("allreduce", 305, 410, 40)
    b.launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 340)
    for trace, at in ((a, 307), (b, 7)):  # at once the next collective, which ends under the next compute
        trace.collective("allreduce", at, 455, 15, launch_duration=0).launch("gemm", at, 1, 456, 104)
    a.collective("allreduce", 308, 565, 235)
    b.collective("allreduce", 760, 765, 35)
    charges = blame(a, b)
    assert by_rank(charges) == {(1, 0): 300, (0, 1): 200}
    assert charges[1, 0, "data_loading"] == 300
    assert charges[0, 1, "host_launch"] == pytest.approx(200, abs=5)


def test_lateness_from_before_the_recording_is_said_to_be_that() -> None:
    """Rank 1's first step begins 200 us later; both do the same in it."""
    a, b = TraceBuilder(0), TraceBuilder(1)
    a.step(1, 0, 600).launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 390)
    b.step(1, 200, 400).launch("gemm", 200, 5, 205, 100).collective("allreduce", 205, 310, 190)
    assert blame(a, b) == {(0, 1, "before_window"): 200}


def test_without_steps_ranks_are_compared_since_their_recordings_began() -> None:
    a, b = TraceBuilder(0), TraceBuilder(1)
    a.launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 390)
    b.data_loading(0, 200).launch("gemm", 200, 5, 205, 100).collective("allreduce", 205, 310, 190)
    assert blame(a, b) == {(0, 1, "data_loading"): 200}


def test_without_steps_a_later_begin_of_the_recording_is_said_to_be_that() -> None:
    a, b = TraceBuilder(0), TraceBuilder(1)
    a.launch("gemm", 0, 5, 5, 100).collective("allreduce", 5, 110, 390)
    b.launch("gemm", 200, 5, 205, 100).collective("allreduce", 205, 310, 190)
    assert blame(a, b) == {(0, 1, "before_window"): 200}


# --- chains of waits


GROUP_A = {"group": "1", "group_ranks": (0, 1)}
GROUP_B = {"group": "2", "group_ranks": (1, 2)}


def test_the_blame_goes_along_the_chain_to_the_rank_that_began_it() -> None:
    """Rank 0 waits for 1 in group A; 1 was late because it waited for 2 in group B, which loaded data."""
    a, b, c = (TraceBuilder(rank, 3).step(1, 0, 600) for rank in range(3))
    a.launch("gemm", 0, 5, 10, 90).collective("allreduce", 6, 100, 420, **GROUP_A)
    b.launch("gemm", 0, 5, 10, 90).collective("allreduce", 6, 100, 320, **GROUP_B)
    b.collective("allreduce", 7, 425, 95, **GROUP_A)
    c.data_loading(0, 300).launch("gemm", 300, 5, 310, 90).collective("allreduce", 306, 400, 20, **GROUP_B)
    job = attributed(a, b, c)
    assert [exposed_wait_us(job, rank) for rank in range(3)] == [325, 300, 0]
    charges = blame_us(job)
    assert charges[1, 2, "data_loading"] == 300
    # Rank 1 spent 300 us more than rank 0 on waiting, 20 on the transfer in group B, 5 on the launch of the next.
    assert charges[0, 2, "data_loading"] == pytest.approx(325 * 300 / 325, abs=0.01)
    assert charges[0, 1, "transfer"] == pytest.approx(325 * 20 / 325, abs=0.01)
    assert by_rank(charges) == pytest.approx({(0, 2): 300, (0, 1): 25, (1, 2): 300}, abs=0.01)


def test_a_chain_of_three_waits_is_followed_to_its_end() -> None:
    """0 waits for 1, 1 for 2, 2 for 3, which computes longest."""
    traces = [TraceBuilder(rank, 4).step(1, 0, 2000) for rank in range(4)]
    groups = [{"group": str(i + 1), "group_ranks": (i, i + 1)} for i in range(3)]
    for rank, trace in enumerate(traces):
        trace.launch("gemm", 0, 5, 5, 100 if rank < 3 else 1000)
    traces[3].collective("allreduce", 6, 1006, 10, **groups[2])
    traces[2].collective("allreduce", 6, 106, 910, **groups[2]).collective("allreduce", 7, 1017, 10, **groups[1])
    traces[1].collective("allreduce", 6, 106, 921, **groups[1]).collective("allreduce", 7, 1028, 10, **groups[0])
    traces[0].collective("allreduce", 6, 106, 932, **groups[0])
    charges = blame(*traces)
    for waiting in (0, 1, 2):
        assert charges[waiting, 3, "compute"] == pytest.approx(900, abs=1)
    assert sum(us for (_, late, _), us in charges.items() if late != 3) < 50


def test_a_late_rank_with_causes_of_its_own_and_a_wait_shares_the_blame() -> None:
    """Rank 1 waited 200 us for rank 2's loading and then computed 200 us longer than rank 0."""
    a, b, c = (TraceBuilder(rank, 3).step(1, 0, 1000) for rank in range(3))
    a.launch("gemm", 0, 5, 5, 95).collective("allreduce", 6, 100, 500, **GROUP_A)
    b.launch("gemm", 0, 5, 5, 95).collective("allreduce", 6, 100, 200, **GROUP_B)
    b.launch("gemm", 7, 5, 300, 200).collective("allreduce", 12, 500, 100, **GROUP_A)
    c.data_loading(0, 200).launch("gemm", 200, 5, 205, 95).collective("allreduce", 206, 300, 0.5, **GROUP_B)
    assert blame(a, b, c) == {(1, 2, "data_loading"): 200, (0, 2, "data_loading"): 200, (0, 1, "compute"): 200}


# --- who is charged with what


def test_the_root_of_a_broadcast_is_never_charged_with_waiting() -> None:
    root, other = (TraceBuilder(rank).step(1, 0, 600) for rank in (0, 1))
    root.launch("gemm", 0, 5, 5, 95).collective("broadcast", 6, 100, 400, root=0)
    other.launch("gemm", 0, 5, 5, 295).collective("broadcast", 6, 300, 200, root=0)
    job = attributed(root, other)
    assert parts_us(job, 0)["transfer"] == 400
    assert blame_us(job) == {}


def test_only_the_exposed_part_of_a_wait_is_charged() -> None:
    """The wait lasts 300 us, of which 120 us are hidden under a kernel."""
    early, late = (TraceBuilder(rank).step(1, 0, 600) for rank in (0, 1))
    early.launch("gemm", 0, 5, 5, 95).collective("allreduce", 6, 100, 350).launch("gemm", 7, 5, 150, 120)
    late.launch("gemm", 0, 5, 5, 395).collective("allreduce", 6, 400, 50)
    job = attributed(early, late)
    assert exposed_wait_us(job, 0) == 180
    assert by_rank(blame_us(job)) == {(0, 1): 180}


def test_every_exposed_wait_is_charged_once() -> None:
    job = attributed(*level_twice())
    for rank in (0, 1):
        charged = sum(us for (waiting, _, _), us in blame_us(job).items() if waiting == rank)
        assert charged == pytest.approx(exposed_wait_us(job, rank))


def test_each_charge_tells_its_wait_step_and_collective() -> None:
    a, b = level_twice()
    job = attributed(a, b)
    slices = {(s.waiting_rank, s.start_ns): s for s in job.slices}
    assert {key: (s.blamed_rank, s.part, s.wait_ns, s.step) for key, s in slices.items() if s.wait_ns > 1000} == {
        (0, 100_000): (1, "data_loading", 300_000, 1),
        (1, 600_000): (0, "host_launch", 200_000, 1),
    }
    for (rank, start), piece in slices.items():
        match = job.matches[piece.match]
        timeline = next(t for t in job.timelines if t.rank == rank)
        assert timeline.communication.start_ns[match.kernels[rank]] == start


def test_a_group_with_missing_ranks_charges_nobody() -> None:
    late = TraceBuilder(1, 3).step(1, 0, 1000).launch("gemm", 0, 5, 5, 300).collective("allreduce", 5, 310, 190)
    assert blame(waiter(200, world_size=3), late) == {}


# --- pipelines


def test_waiting_beyond_the_bubble_is_blamed_on_the_slowest_stage() -> None:
    """Two stages, one microbatch: half of the step may be bubble. Stage 0 computes 900 of 1000 us."""
    first, last = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    first.launch("gemm", 0, 0, 0, 900).collective("send", 0, 900, 10, root=1, launch_duration=0)
    last.collective("recv", 0, 0, 910, root=0, launch_duration=0).launch("gemm", 0, 0, 910, 90)
    job = attributed(first, last)
    assert parts_us(job, 1) == {"bubble": 500, "wait": 400, "transfer": 10, "compute": 90}
    assert blame_us(job) == {(1, 0, "compute"): 400}


def test_a_stage_is_not_slow_because_it_works_at_another_time() -> None:
    """Equal stages: the second had computed nothing yet when the first sent, which makes nobody slow."""
    first, last = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    first.launch("gemm", 0, 0, 0, 450).collective("send", 0, 450, 10, root=1, launch_duration=0)
    last.collective("recv", 0, 0, 460, root=0, launch_duration=0).launch("gemm", 0, 0, 460, 450)
    job = attributed(first, last)
    assert parts_us(job, 1)["bubble"] == 450
    assert blame_us(job) == {}


NOW = {"launch_duration": 0}


@pytest.mark.parametrize("last", [3180, 3600], ids=["6 % longer", "a fifth longer"])
def test_a_stage_that_computes_longer_sets_the_pace_of_the_others(last: float) -> None:
    """Three stages, one microbatch: 1000 us forward and 2000 us backward each, and the last one longer for both.

    Two thirds of the step may be bubble. The first stage's GPU is idle from its send's end until the second stage
    sends its gradient, for 3020 us and all of the last stage's: what is beyond the bubble is the last stage's doing,
    and not the second's, which computes no longer than the first.
    """
    whole = 6040 + last
    a, b, c = (TraceBuilder(rank, 3).step(1, 0, whole) for rank in range(3))
    a.launch("gemm", 0, 0, 0, 1000).collective("send", 0, 1000, 10, root=1, **NOW)
    b.collective("recv", 0, 0, 1010, root=0, **NOW).launch("gemm", 0, 0, 1010, 1000)
    b.collective("send", 0, 2010, 10, root=2, **NOW)
    c.collective("recv", 0, 0, 2020, root=1, **NOW).launch("gemm", 0, 0, 2020, last)
    c.collective("send", 0, 2020 + last, 10, root=1, **NOW)
    b.collective("recv", 0, 2020, 10 + last, root=2, **NOW).launch("gemm", 0, 0, 2030 + last, 2000)
    b.collective("send", 0, 4030 + last, 10, root=0, **NOW)
    a.collective("recv", 0, 1010, 3030 + last, root=1, **NOW).launch("gemm", 0, 0, 4040 + last, 2000)
    beyond = 3020 + last - 2 / 3 * whole
    assert blame_us(attributed(a, b, c)) == {(0, 2, "compute"): pytest.approx(beyond, abs=0.001)}


def test_of_two_stages_the_one_that_computes_longer_sets_the_pace() -> None:
    """The first computes 1000 us and then 2000 us, the second 3180 us between: half of the 6200 us may be bubble."""
    first, last = (TraceBuilder(rank).step(1, 0, 6200) for rank in (0, 1))
    first.launch("gemm", 0, 0, 0, 1000).collective("send", 0, 1000, 10, root=1, **NOW)
    last.collective("recv", 0, 0, 1010, root=0, **NOW).launch("gemm", 0, 0, 1010, 3180)
    last.collective("send", 0, 4190, 10, root=0, **NOW)
    first.collective("recv", 0, 1010, 3190, root=1, **NOW).launch("gemm", 0, 0, 4200, 2000)
    assert blame_us(attributed(first, last)) == {(0, 1, "compute"): pytest.approx(3180 - 3100, abs=0.001)}


@pytest.mark.parametrize("more", [0, 6], ids=["equal", "2 % more"])
def test_among_equal_stages_none_is_the_slow_one(more: float) -> None:
    """The first stage loads data for 500 us, so that the second waits 810 of 1000: 300 beyond its bubble."""
    first, last = (TraceBuilder(rank).step(1, 0, 1000) for rank in (0, 1))
    first.data_loading(0, 500).launch("gemm", 500, 0, 500, 300 + more)
    first.collective("send", 500, 800 + more, 10 - more, root=1, launch_duration=0)
    last.collective("recv", 0, 0, 810, root=0, launch_duration=0).launch("gemm", 0, 0, 810, 190)
    last.launch("gemm", 0, 0, 1000, 110)
    charges = blame(first, last)
    assert charges[1, 0, "data_loading"] > 150


def test_charges_name_parts_or_the_time_before_the_window() -> None:
    known = {part.name.lower() for part in Part} | {"before_window"}
    for traces in (level_twice(), two_steps()):
        assert {part for _, _, part in blame_us(attributed(*traces))} <= known
