"""`tune nccl` on real ranks: what is chosen on a fabric whose law is known, and what is caught."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from tests.nccl_tuner.fabrics import DEFAULT, ENVIRONMENT, KIB, MIB, tuned, work
from tests.nccl_tuner.plugin import ALL_REDUCE, TREE, Plugin
from tests.slurm import free_port

from flatout.nccl_tuner import measure, tuning
from flatout.nccl_tuner.backends import TorchBackend
from flatout.nccl_tuner.plan import Law, RankPlan, SimulatedFabric
from flatout.nccl_tuner.rank import RankMessage
from flatout.nccl_tuner.table_file import read_table
from flatout.nccl_tuner.tuning import TuningRequest, tune_nccl
from flatout.records.collective_table import TableRow
from flatout.records.nccl_tuning import Measurements, NcclCandidate, NcclTuning, Start

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(autouse=True)
def _few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest starts that can be compared, as each takes a second."""
    monkeypatch.setattr(tuning, "NUM_TURNS", 3)
    monkeypatch.setattr(tuning, "ROUNDS_OF_TURN", 2)
    monkeypatch.setattr(tuning, "NUM_ROUNDS", 8)


# Latency against the default's 100 us, and 3 GB/s: better up to 64 KiB (1.17x there), worse from 256 KiB.
TREE_LAW = Law(candidate="tree", collective="all_reduce", latency_s=40e-6, bytes_per_s=1e9)


def test_a_table_is_chosen_by_size_and_asked_by_the_plugin(tmp_path: Path, plugin: Plugin) -> None:
    """Better where `40 us + n / 1 GB/s` is below `100 us + n / 3 GB/s` by 2 %: at 4, 16 and 64 KiB."""
    # As fast as nothing else, but with an all-gather in the wrong order of ranks.
    wrong = Law(candidate="ring", latency_s=1e-6, bytes_per_s=1e12, is_wrong=True)
    result = tuned(tmp_path, work("all_reduce", "all_gather"), TREE_LAW, wrong)
    row = TableRow(
        collective="all_reduce",
        min_bytes=4 * KIB,
        max_bytes=128 * KIB,  # half of the way from 64 to 256 KiB, on a logarithmic scale
        num_ranks=2,
        algorithm="tree",
    )
    assert result.table.rows == (row,)
    chosen = {size.num_bytes: size for size in result.sizes if size.candidate is not None}
    assert sorted(chosen) == [4 * KIB, 16 * KIB, 64 * KIB]
    small = chosen[4 * KIB]
    truth = (100e-6 + 4096 / 3e9) / (40e-6 + 4096 / 1e9)
    assert small.speedup == pytest.approx(truth, rel=0.05)
    assert small.interval is not None
    assert small.interval[0] < truth < small.interval[1]
    assert small.confirmed_speedup == pytest.approx(truth, rel=0.1)
    # The wrong candidate is caught and named, and its speed does not count.
    assert [(each.candidate, result.work.cases[each.case or 0].collective) for each in result.wrong] == [
        ("ring", "all_reduce")
    ]
    assert re.search(r"rank \d: \d+ of \d+ elements are wrong", result.wrong[0].problem)
    # The file is the table, and the plugin answers by it.
    assert result.table_file is not None
    path = Path(result.table_file)
    assert read_table(path) == result.table
    answers = plugin.ask(path, (ALL_REDUCE, 64 * KIB), (ALL_REDUCE, 256 * KIB)).answers
    assert [list(answer.changed) for answer in answers] == [[(TREE, 0)], []]
    assert result.environment == {}, "a simulated fabric has nothing to apply"


def test_an_all_gather_in_the_wrong_order_of_ranks_is_caught(tmp_path: Path) -> None:
    wrong = Law(candidate="nvls", collective="all_gather", latency_s=1e-6, bytes_per_s=1e12, is_wrong=True)
    result = tuned(tmp_path, work("all_gather", sizes=(16 * KIB,)), wrong)
    assert result.table.rows == ()
    [caught] = result.wrong
    assert caught.candidate == "nvls"
    assert "2 where 1 is right" in caught.problem or "1 where 2 is right" in caught.problem


@pytest.mark.parametrize("seed", range(3))
def test_candidates_that_equal_the_default_get_no_rows(tmp_path: Path, seed: int) -> None:
    result = tuned(tmp_path, work("all_reduce", "reduce_scatter", sizes=(KIB, MIB)), noise=0.05, seed=seed)
    assert result.table.rows == ()
    assert result.table_file is None
    assert not any(tmp_path.glob("*.txt"))
    assert result.settings == {}


def test_settings_of_the_process_are_compared_in_turns_and_choices_on_top_of_them(tmp_path: Path) -> None:
    """Twice as fast by its rate; a limit of channels is faster with these settings only."""
    name = "copy engine"
    laws = (
        Law(settings=name, latency_s=100e-6, bytes_per_s=6e9),
        Law(settings=name, candidate="at most 2 channels", latency_s=50e-6, bytes_per_s=6e9),
        Law(settings="buffer 1 MiB", latency_s=100e-6, bytes_per_s=3e9),
        Law(candidate="at most 2 channels", latency_s=200e-6, bytes_per_s=3e9),
    )
    said: list[str] = []
    of_work = work("all_reduce", sizes=(16 * KIB, 16 * MIB), calls_per_step=10.0)
    result = tuned(tmp_path, of_work, *laws, transport="shared_memory", said=said)
    assert result.settings == {"NCCL_SHM_USE_CUDA_MEMCPY": "1"}
    # By hand: 10 calls of each size in one step.
    default_s = 2 * 100e-6 + (16 * KIB + 16 * MIB) / 3e9
    chosen_s = 2 * 100e-6 + (16 * KIB + 16 * MIB) / 6e9
    assert result.settings_speedup == pytest.approx(default_s / chosen_s, rel=0.03)
    assert [(row.min_bytes, row.max_bytes, row.max_channels) for row in result.table.rows] == [(16 * KIB, 512 * KIB, 2)]
    turns = [line.removeprefix("measuring ") for line in said if "turn" in line]
    starts = ["default", "copy engine", "buffer 1 MiB"]
    assert turns[:6] == [f"{start}, turn 1 of 3" for start in starts] + [
        f"{start}, turn 2 of 3" for start in reversed(starts)
    ]


def test_a_candidate_that_hangs_is_ended_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "SILENCE_LIMIT_S", 5.0)
    hanging = Law(candidate="ring", latency_s=1e-6, bytes_per_s=1e12, is_hanging=True)
    result = tuned(tmp_path, work("all_reduce", sizes=(4 * KIB,)), hanging, TREE_LAW)
    assert list(result.not_measured) == ["choices, ring"]
    assert "wait for each other" in result.not_measured["choices, ring"]
    assert [row.algorithm for row in result.table.rows] == ["tree"]


def test_gloo_is_measured_with_its_own_settings_and_right_answers(tmp_path: Path) -> None:
    """In real time, so nothing is said about which is faster."""
    of_work = work("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", sizes=(4 * KIB, 256 * KIB))
    request = TuningRequest(backend="gloo", transport="gloo", num_ranks=2, work=of_work, folder=tmp_path, time_s=60.0)
    result = tune_nccl(request, lambda _: None, ENVIRONMENT)
    assert (result.wrong, result.not_measured) == ((), {})
    assert result.num_candidates == 2
    assert len(result.sizes) == 10
    assert all(size.default_s > 0 for size in result.sizes)
    assert result.table.rows == (), "gloo asks no table"
    assert "gloo" in result.software


def test_gloos_threads_are_those_of_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.distributed.new_group` ignores options for gloo: without a check, all candidates were equal."""
    import torch
    import torch.distributed as dist

    of_work = work("all_reduce", sizes=(KIB,), num_ranks=1)
    start = Start(name="choices", candidates=(NcclCandidate(name="default"),))
    plan = RankPlan(
        backend="gloo", start=start, work=of_work, first_round=0, num_rounds=1, time_s=1.0, folder="", meeting=""
    )
    made = []
    original = dist.new_group

    def new_group(*args: object, **kwargs: object) -> object:
        made.append(original(*args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(dist, "new_group", new_group)
        backend = TorchBackend(torch, 0, 0, plan, KIB)
        for candidate in (NcclCandidate(name="1 thread", threads=1), NcclCandidate(name="5 threads", threads=5)):
            backend.communicator(candidate, [(0,)], (0,))
        threads = [group._get_backend(torch.device("cpu")).options._threads for group in made]
    finally:
        dist.destroy_process_group()
    assert threads == [1, 5]


def test_one_command_per_rank_under_a_launcher_decides_alike(tmp_path: Path) -> None:
    """As torchrun and srun start commands: each starts its own rank, and the first one writes the table."""
    variables = ENVIRONMENT | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    fabric = SimulatedFabric(transport="nvlink", noise=0.02, law=(TREE_LAW, DEFAULT))
    results = {}

    def run(rank: int) -> None:
        request = TuningRequest(
            backend="simulated",
            transport="nvlink",
            num_ranks=2,
            work=work("all_reduce", sizes=(4 * KIB,)),
            folder=tmp_path / str(rank),
            time_s=60.0,
            fabric=fabric,
            reports=rank == 0,
        )
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        results[rank] = tune_nccl(request, lambda _: None, variables | place)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results[0].table == results[1].table
    assert [row.algorithm for row in results[0].table.rows] == ["tree"]
    assert [(tmp_path / str(rank) / "nccl-table.txt").exists() for rank in range(2)] == [True, False]


def _beside_a_vendors_tuner(folder: Path, *vendor: Law) -> NcclTuning:
    fabric = SimulatedFabric(
        transport="efa", noise=0.01, vendor_tuner="the tuner of aws-ofi-nccl", law=(*vendor, TREE_LAW, DEFAULT)
    )
    request = TuningRequest(
        backend="simulated",
        transport="efa",
        num_ranks=2,
        work=work("all_reduce", sizes=(4 * KIB, 16 * MIB)),
        folder=folder,
        time_s=60.0,
        fabric=fabric,
    )
    return tune_nccl(request, lambda _: None, ENVIRONMENT)


def _vendor(latency_s: float, bytes_per_s: float) -> Law:
    return Law(candidate="vendor", latency_s=latency_s, bytes_per_s=bytes_per_s)


# The default takes 101.4 us at 4 KiB and the table 44.1; at 16 MiB, where it has no row, both take 5.69 ms.
@pytest.mark.parametrize(
    ("vendor", "words"),
    [
        (_vendor(100e-6, 3e9), "was faster than it (1.5"),
        (_vendor(42.73e-6, 3e9), "was not shown to be faster than it"),
        (_vendor(100e-6, 6e9), "is slower than it for all_reduce of 16777216"),
    ],
    ids=["it chooses as NCCL does", "it is as fast as the table", "it is faster where the table has no row"],
)
def test_a_vendors_tuner_is_displaced_only_where_the_table_was_measured_faster(
    tmp_path: Path, vendor: Law, words: str
) -> None:
    result = _beside_a_vendors_tuner(tmp_path, vendor)
    assert bool(result.table.rows) == words.startswith("was faster")
    assert (result.table_file is not None) == bool(result.table.rows)
    [note] = result.notes
    assert "aws-ofi-nccl" in note
    assert words in note


class LoggedXids:
    """The driver's log, read before and after each start of the ranks; `errors` come during that start."""

    def __init__(self, errors: dict[int, int], before: int = 0) -> None:
        self._errors, self._num_reads = errors, 0
        self._before = before

    def read(self) -> list[dict[str, object]] | None:
        start, is_after = divmod(self._num_reads, 2)
        self._num_reads += 1
        number = self._errors.get(start) if is_after else self._before if start == 0 else None
        return [{"gpu": 0, "number": number}] if number else []


def _measured_with(monkeypatch: pytest.MonkeyPatch, xids: LoggedXids) -> Measurements:
    """Measure a default and a setting that is twice as fast, three turns of each: starts 0, 3, 4 and 1, 2, 5."""
    of_work = work("all_reduce", sizes=(MIB,))

    def run(plan: RankPlan, *_: object) -> list[RankMessage]:
        seconds = 2e-3 if plan.start.name == "default" else 1e-3
        return [RankMessage(samples=((0, 0, plan.first_round, seconds),)), RankMessage(is_done=True)]

    monkeypatch.setattr(measure, "_run", run)
    starts = [Start(name=name, candidates=(NcclCandidate(name="default"),)) for name in ("default", "fast")]
    ranks = measure.Ranks(backend="nccl", num_ranks=2)
    return measure.measure(
        ranks, starts, of_work, num_turns=3, num_rounds=1, time_s=1.0, environment={}, say=lambda _: None, xids=xids
    )


@pytest.mark.parametrize(("at_start", "culprit"), [(1, "fast"), (5, "fast"), (0, "default")])
def test_an_xid_during_a_start_rules_its_candidates_out(
    monkeypatch: pytest.MonkeyPatch, at_start: int, culprit: str
) -> None:
    measured = _measured_with(monkeypatch, LoggedXids({at_start: 31}))
    [wrong] = measured.wrong
    assert (wrong.start, wrong.case) == (culprit, None)
    assert wrong.problem == "the GPU driver logged Xid 31 while it was measured"
    assert {sample.start for sample in measured.samples} == {"default", "fast"} - {culprit}


def test_an_xid_that_was_logged_before_the_first_start_rules_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = _measured_with(monkeypatch, LoggedXids({}, before=79))
    assert measured.wrong == ()
    assert len(measured.samples) == 6
