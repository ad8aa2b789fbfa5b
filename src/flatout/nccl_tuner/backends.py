"""The ways to run a candidate's collectives: NCCL on GPUs, gloo on CPUs, and a simulated fabric with a known law.

A backend makes communicators; a communicator runs a case a number of times and returns the seconds per call, and runs
it once on data with a known answer. All ranks of a group call the same methods in the same order.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from flatout.inside.protocol import Variable
from flatout.nccl_tuner.known_answers import Buffers, num_elements
from flatout.nccl_tuner.plan import VENDOR, Law, RankPlan, SimulatedFabric
from flatout.nccl_tuner.settings import options_problem
from flatout.nccl_tuner.table_file import checksum, table_text
from flatout.records.collective_table import COLLECTIVES, CollectiveTable
from flatout.records.nccl_tuning import DEFAULT, Case, NcclCandidate, Start

_LIMIT = timedelta(minutes=2)  # of one collective: longer means that the ranks wait for each other for ever
_CHECKED_BYTES = 64 << 10  # of a simulated collective, whose data are moved by gloo


Groups = Sequence[Sequence[int]]


class Communicator(Protocol):
    """A candidate in one group of ranks."""

    def seconds(self, case: Case, calls: int) -> float:
        """Return the seconds per call of `calls` calls in a row."""
        ...

    def wrong(self, case: Case) -> str | None:
        """Describe the error in a result with a known answer; None if it is right."""
        ...


class Backend(Protocol):
    def communicator(
        self, candidate: NcclCandidate, groups: Sequence[Sequence[int]], mine: Sequence[int]
    ) -> Communicator | None:
        """Make the communicators of all `groups`, on all ranks; return that of `mine`, the group of this rank.

        Return None if this rank is in none of the groups.
        """
        ...

    def software(self) -> str:
        """Name the library and its version."""
        ...


def make_backend(plan: RankPlan, torch: Any, rank: int, local_rank: int) -> Backend:
    largest = max(case.num_bytes for case in plan.work.cases)
    if plan.backend == "simulated":
        assert plan.fabric is not None
        return SimulatedBackend(torch, rank, plan, plan.fabric)
    return TorchBackend(torch, rank, local_rank, plan, largest)


class TorchBackend:
    """NCCL or gloo, by torch's process groups: each candidate has a separate group."""

    def __init__(self, torch: Any, rank: int, local_rank: int, plan: RankPlan, largest_bytes: int) -> None:
        self._torch, self._rank, self._plan = torch, rank, plan
        self._largest_bytes = largest_bytes
        self._buffers: dict[tuple[int, ...], Buffers] = {}
        if plan.backend == "nccl":
            self._device = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self._device)
        else:
            self._device = torch.device("cpu")

    def communicator(
        self, candidate: NcclCandidate, groups: Sequence[Sequence[int]], mine: Sequence[int]
    ) -> Communicator | None:
        self._set_table(candidate)
        opened = None
        for ranks in groups:  # every rank takes part in making every group
            with self._gloo_threads(candidate):
                group = self._torch.distributed.new_group(
                    list(ranks), backend=self._plan.backend, timeout=_LIMIT, pg_options=self._options(candidate)
                )
            self._check_threads(candidate, group)
            if list(ranks) == list(mine):
                opened = group
        if not mine:
            return None
        ranks = tuple(mine)
        if ranks not in self._buffers:
            self._buffers[ranks] = Buffers(self._torch, self._device, ranks, self._rank, self._largest_bytes)
        communicator = _TorchCommunicator(self._torch, self._device, opened, self._buffers[ranks])
        # NCCL makes its communicator, and our plugin reads its table, with the first collective.
        communicator.seconds(Case(collective="all_reduce", shape=0, num_bytes=4 * len(ranks)), 1)
        return communicator

    def software(self) -> str:
        version = self._torch.__version__
        if self._plan.backend != "nccl":
            return f"torch {version}, gloo"
        return f"torch {version}, NCCL {'.'.join(map(str, self._torch.cuda.nccl.version()))}"

    def _set_table(self, candidate: NcclCandidate) -> None:
        """Point the tuner plugin to the candidate's table. All ranks write the same one, so it counts as compared."""
        if self._plan.plugin is None:
            return
        text = candidate.table
        if not text:
            rows = tuple(candidate.row(collective) for collective in COLLECTIVES) if candidate.has_row else ()
            text = table_text(CollectiveTable(rows=rows))
        path = Path(self._plan.folder) / f"table-{self._rank}-{checksum(text.encode())}.txt"
        path.write_text(text, encoding="utf-8")
        os.environ[Variable.NCCL_TABLE] = str(path)
        os.environ[Variable.NCCL_TABLE_COMPARED] = checksum(text.encode())

    @contextmanager
    def _gloo_threads(self, candidate: NcclCandidate) -> Iterator[None]:
        """Have torch make gloo's groups with the candidate's threads: `new_group` ignores options for gloo."""
        if candidate.threads is None:
            yield
            return
        module = self._torch.distributed.distributed_c10d
        original = module.ProcessGroupGloo
        options = original._Options()
        options._devices = [original.create_default_device()]
        options._threads = candidate.threads
        options._timeout = _LIMIT

        class WithThreads(original):  # type: ignore[misc, valid-type]
            def __init__(self, store: Any, rank: int, size: int, timeout: timedelta | None = None) -> None:
                del timeout
                super().__init__(store, rank, size, options)

        module.ProcessGroupGloo = WithThreads
        try:
            yield
        finally:
            module.ProcessGroupGloo = original

    def _check_threads(self, candidate: NcclCandidate, group: Any) -> None:
        """Raise RuntimeError if a group of this rank does not have the candidate's threads."""
        is_member = group is not self._torch.distributed.GroupMember.NON_GROUP_MEMBER
        if candidate.threads is None or not is_member:
            return
        threads = group._get_backend(self._device).options._threads
        if threads != candidate.threads:
            raise RuntimeError(f"gloo has {threads} threads in place of {candidate.threads}")

    def _options(self, candidate: NcclCandidate) -> Any:
        if self._plan.backend == "gloo":
            return None
        problem = options_problem(candidate.min_ctas, candidate.max_ctas)
        if problem is not None:
            raise ValueError(problem)
        options = self._torch.distributed.ProcessGroupNCCL.Options()
        if candidate.min_ctas is not None:
            options.config.min_ctas, options.config.max_ctas = candidate.min_ctas, candidate.max_ctas
        return options


class _TorchCommunicator:
    def __init__(self, torch: Any, device: Any, group: Any, buffers: Buffers) -> None:
        self._torch, self._device, self._group, self._buffers = torch, device, group, buffers

    def seconds(self, case: Case, calls: int) -> float:
        self._wait()
        began = time.perf_counter()
        for _ in range(calls):
            self._buffers.call(case.collective, case.num_bytes, self._group)
        self._wait()
        return (time.perf_counter() - began) / calls

    def wrong(self, case: Case) -> str | None:
        self._buffers.fill(case.collective, case.num_bytes)
        self._buffers.call(case.collective, case.num_bytes, self._group)
        self._wait()
        problem = self._buffers.wrong(case.collective, case.num_bytes)
        self._buffers.empty()
        return problem

    def _wait(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


class SimulatedBackend:
    """Times follow a known law; the data of the checks are moved by gloo."""

    def __init__(self, torch: Any, rank: int, plan: RankPlan, fabric: SimulatedFabric) -> None:
        self._torch, self._rank, self._plan, self._fabric = torch, rank, plan, fabric

    def communicator(
        self, candidate: NcclCandidate, groups: Sequence[Sequence[int]], mine: Sequence[int]
    ) -> Communicator | None:
        opened = None
        for ranks in groups:
            group = self._torch.distributed.new_group(list(ranks), backend="gloo", timeout=_LIMIT)
            if list(ranks) == list(mine):
                opened = group
        if not mine:
            return None
        buffers = Buffers(self._torch, self._torch.device("cpu"), mine, self._rank, _CHECKED_BYTES)
        return _SimulatedCommunicator(
            self._fabric, self._plan.start, candidate, opened, buffers, self._noise(candidate)
        )

    def software(self) -> str:
        return "a simulated fabric"

    def _noise(self, candidate: NcclCandidate) -> random.Random:
        """Return a source of noise that differs between candidates, ranks and turns, and repeats with the seed."""
        plan = self._plan
        return random.Random(f"{self._fabric.seed} {plan.start.name} {candidate.name} {self._rank} {plan.first_round}")


class _SimulatedCommunicator:
    def __init__(
        self,
        fabric: SimulatedFabric,
        start: Start,
        candidate: NcclCandidate,
        group: Any,
        buffers: Buffers,
        noise: random.Random,
    ) -> None:
        self._fabric, self._settings, self._candidate = fabric, start.settings, candidate
        has_our_plugin = any(each.uses_table for each in start.candidates)
        self._asks_vendor = fabric.vendor_tuner is not None and not has_our_plugin
        self._group, self._buffers = group, buffers
        self._noise = noise

    def seconds(self, case: Case, calls: int) -> float:
        del calls
        return self._law(case).seconds(case.num_bytes) * self._noise.lognormvariate(0.0, self._fabric.noise)

    def wrong(self, case: Case) -> str | None:
        while self._law(case).is_hanging:
            time.sleep(60)
        num_bytes = min(case.num_bytes, _CHECKED_BYTES)
        self._buffers.fill(case.collective, num_bytes)
        self._buffers.call(case.collective, num_bytes, self._group)
        if self._law(case).is_wrong:
            self._damage(case.collective, num_elements(num_bytes, len(self._buffers.ranks)))
        return self._buffers.wrong(case.collective, num_bytes)

    def _law(self, case: Case) -> Law:
        """Return the law of the candidate, by the row that applies if the candidate is a whole table."""
        candidate = self._chosen(case) if self._candidate.table else self._candidate.name
        if candidate == DEFAULT and self._asks_vendor:
            candidate = VENDOR
        law = self._fabric.law_of(self._settings, candidate, case.collective)
        law = law or self._fabric.law_of(self._settings, DEFAULT, case.collective)
        if law is None:
            raise ValueError(f"the simulated fabric has no law for `{DEFAULT}`")
        return law

    def _chosen(self, case: Case) -> str:
        from flatout.nccl_tuner.candidates import row_name
        from flatout.nccl_tuner.table_file import parse_table

        table = parse_table(self._candidate.table, "the candidate's table")
        row = table.row_for(case.collective, case.num_bytes, len(self._buffers.ranks), 1)
        return DEFAULT if row is None else row_name(row.algorithm, row.protocol, row.max_channels)

    def _damage(self, collective: str, count: int) -> None:
        """Do what fast and wrong settings did: an all-gather in another order of ranks, or another sum."""
        if collective == "all_gather":
            share = count // len(self._buffers.ranks)
            self._buffers.output[:count] = self._buffers.output[:count].roll(share)
        else:
            self._buffers.input += 1.0
            self._buffers.output += 1.0
