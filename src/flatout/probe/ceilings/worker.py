"""One rank of `flatout bench`: `python -m flatout.probe.ceilings.worker`, with the settings as JSON on standard input.

Each repetition goes through all measurements once, so that no measurement has the quiet minutes to itself. The first
rank decides what is dropped and when it ends; all keep in step over a gloo group. On the first rank, standard output
has lines of JSON: progress, and in the end every repetition of every rank. Without torch there is one rank, of numpy.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from flatout.probe.ceilings import copy, decode, launch_rate, matmul, storage, transfer
from flatout.probe.ceilings.bus import COLLECTIVES
from flatout.probe.ceilings.case import CannotMeasureError, Case, Who
from flatout.probe.ceilings.names import concerns
from flatout.probe.ceilings.queued import calls_of
from flatout.probe.ceilings.raw import About, Raw, RawCase, Settings
from flatout.probe.limits import allowed_cores, free_bytes

MIN_ROUNDS, MAX_ROUNDS = 3, 25
_SHARE_OF_WARMING = 0.4  # of the time, before the first repetition that counts
_SHARE_OF_CHECKS = 0.1  # of the time, after the last one
_PASSES = 3  # over what has had no time yet
_CHEAP = 5  # samples: what costs less than so many is kept, however late it is
# A first call is made again where it took longer than this and than so many times what the size before it explains.
_COLD_S, _COLD_TIMES = 0.05, 3.0
_CPU_SAMPLE_S, _GPU_SAMPLE_S = 0.02, 0.005
_SHARE_OF_MEMORY = 0.5  # of what is free, for the collectives


class Team:
    """The ranks, as one of them sees them; of one rank alone, without torch, nothing has to be agreed."""

    def __init__(self, settings: Settings, torch: Any) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._dist: Any = None
        self._control: Any = None
        if torch is not None and self.size > 1:
            from datetime import timedelta

            self._dist = torch.distributed
            method = f"file://{settings.meeting_file}" if settings.meeting_file else "env://"
            self._dist.init_process_group(
                "gloo", init_method=method, rank=self.rank, world_size=self.size, timeout=timedelta(minutes=5)
            )
            self._control = self._dist.group.WORLD
        self.hosts = self.gathered(socket.gethostname())

    def wait(self) -> None:
        if self._dist is not None:
            self._dist.barrier(group=self._control)

    def gathered(self, value: Any) -> list[Any]:
        if self._dist is None:
            return [value]
        found = [None] * self.size
        self._dist.all_gather_object(found, value, group=self._control)
        return found

    def of_first(self, value: Any) -> Any:
        """What the first rank says."""
        if self._dist is None:
            return value
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def leave(self) -> None:
        if self._dist is not None:
            self._dist.destroy_process_group()


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was written is removed on the way out
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
    began = time.monotonic()
    torch = _torch()
    team = Team(settings, torch)
    local_rank = int(os.environ.get("LOCAL_RANK", team.rank))
    is_gpu = torch is not None and settings.uses_gpu
    device = None
    if torch is not None:
        device = torch.device("cuda", local_rank % torch.cuda.device_count()) if is_gpu else torch.device("cpu")
        if is_gpu:
            torch.cuda.set_device(device)
            torch.set_num_threads(max(1, int(allowed_cores()) // team.hosts.count(socket.gethostname())))
    with ExitStack() as stack:
        not_measured: dict[str, str] = {}
        cases = _cases(settings, torch, device, team, stack, not_measured)
        rounds = _Rounds(cases, settings, team, torch, began, is_gpu)
        rounds.warm()
        rounds.measure()
        rounds.check_again()
        found = team.gathered([_bytes(one) for one in rounds.found])
    missing: dict[str, str] = {}
    for one in team.gathered(not_measured | rounds.not_measured):
        missing |= {what: why for what, why in one.items() if concerns(what, settings.only)}
    about = team.gathered(_device_name(torch, device))
    team.leave()
    if team.rank == 0:
        raw = Raw(
            cases=tuple(tuple(msgspec.json.decode(one, type=RawCase) for one in rank) for rank in found),
            devices=tuple(about),
            hosts=tuple(team.hosts),
            is_gpu=is_gpu,
            backend="" if team.size == 1 else "nccl" if is_gpu else "gloo",
            software=_software(torch, is_gpu),
            not_measured=missing,
        )
        _tell({"raw": msgspec.to_builtins(raw)})
    return 0


def _bytes(one: RawCase) -> bytes:
    return msgspec.json.encode(one)


def _torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def _cases(
    settings: Settings, torch: Any, device: Any, team: Team, stack: ExitStack, not_measured: dict[str, str]
) -> list[Case]:
    """The same list on every rank: what only the first does is there for the others to wait at."""
    made: list[Case] = []
    array_bytes = _array_bytes()

    def wants(*names: str) -> bool:
        return not settings.only or any(name in settings.only for name in names)

    if torch is None:
        not_measured["collectives"] = not_measured["operator_dispatch"] = "torch is not installed here"
        not_measured["matmul bf16"] = "numpy has no such type"
        made += matmul.numpy_cases() if wants("matmul") else []
        made.append(copy.memcpy_case(who="first", array_bytes=array_bytes, threads=max(1, int(allowed_cores()))))
    elif device.type == "cuda":
        not_measured |= matmul.lacks(torch, device)
        free = min(team.gathered(torch.cuda.mem_get_info(device)[0]))
        shapes = matmul.fitting(matmul.GPU_SHAPES, free)
        too_large = [" x ".join(map(str, shape)) for shape in matmul.GPU_SHAPES if shape not in shapes]
        not_measured |= {f"matmul {shape}": f"memory: {free / 1e9:.1f} GB of a GPU are free" for shape in too_large}
        made += matmul.torch_cases(torch, device, who="each", shapes=shapes)
        gpu_bytes = min(1 << 30, int(free / 16)) // 4096 * 4096
        made += copy.torch_cases(torch, device, who="each", array_bytes=gpu_bytes, threads=None)
        made += transfer.torch_cases(torch, device)
        host = copy.memcpy_case(who="first", array_bytes=array_bytes, threads=max(1, int(allowed_cores())))
        host.name = "host_memory_copy"
        made.append(host)
        made.append(launch_rate.torch_case(torch, device))
    else:
        not_measured |= matmul.lacks(torch, device)
        not_measured["host_to_device, device_to_host"] = "torch sees no GPU"
        cores = max(1, int(allowed_cores()))
        made += matmul.torch_cases(torch, device, who="first", shapes=matmul.CPU_SHAPES)
        sides: list[tuple[Who, int, int]] = [("first", array_bytes, cores)]
        if team.size > 1:  # the ranks side by side, as peers
            sides.append(("each", array_bytes // team.size, max(1, cores // team.size)))
        for who, size, threads in sides:
            made.append(copy.memcpy_case(who=who, array_bytes=size, threads=threads))
            made += copy.torch_cases(torch, device, who=who, array_bytes=size, threads=threads)
        made.append(launch_rate.torch_case(torch, device))
    if wants(*COLLECTIVES):
        made += _collectives(torch, device, team, not_measured)
    if wants("decode_jpeg", "decode_zlib"):
        made += decode.cases()
    not_measured |= decode.lacks()
    if settings.path is None:
        not_measured["storage"] = "no path was given: --path DIR"
    elif wants(*storage.NAMES):
        found: list[Case] = []
        if team.rank == 0:
            found, missing = stack.enter_context(
                storage.storage_cases(
                    Path(settings.path), allow_write=settings.allow_write, prefix=settings.folder_prefix
                )
            )
            not_measured |= missing
        names = team.of_first([case.name for case in found])
        made += found or [_waiting(name) for name in names]
    return [case for case in made if wants(case.name)]


def _waiting(name: str) -> Case:
    return Case(name=name, unit="B/s", work=1.0, call=_nothing, check=_nothing, checked="", who="first")


def _nothing() -> None:
    pass


def _collectives(torch: Any, device: Any, team: Team, not_measured: dict[str, str]) -> list[Case]:
    if torch is None:
        return []
    if team.size == 1:
        not_measured["collectives"] = "they need 2 ranks or more"
        return []
    from flatout.probe.ceilings.collectives import LARGEST_BYTES, SMALLEST_BYTES, Collectives, bytes_needed

    is_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if is_gpu else free_bytes() / team.hosts.count(socket.gethostname())
    free = min(team.gathered(free)) * _SHARE_OF_MEMORY
    largest = LARGEST_BYTES
    while largest > SMALLEST_BYTES and bytes_needed(largest, is_gpu=is_gpu) > free:
        largest //= 2
    names = sorted(set(team.hosts))
    hosts = [names.index(host) for host in team.hosts]
    made = Collectives(torch, device, largest=largest, step=1 if is_gpu else 2, hosts=hosts)
    if largest < LARGEST_BYTES:
        needed = bytes_needed(LARGEST_BYTES, is_gpu=is_gpu)
        told = f"memory: {LARGEST_BYTES:,} B need {needed / 1e9:.1f} GB a rank, and may have {free / 1e9:.1f}"
        not_measured[f"collectives above {made.sizes[-1]:,} B"] = told
    return list(made.cases())


def _array_bytes() -> int:
    """Larger than any cache, and small beside the memory."""
    return min(256 << 20, int(free_bytes() / 16)) // 4096 * 4096


class _Rounds:
    def __init__(
        self, cases: list[Case], settings: Settings, team: Team, torch: Any, began: float, is_gpu: bool
    ) -> None:
        self.cases, self.team, self._torch = cases, team, torch
        self._began, self._time_s = began, settings.time_s
        self._sample_s = _GPU_SAMPLE_S if is_gpu else _CPU_SAMPLE_S
        self._is_gpu = is_gpu
        self._round_s = self._reserved_s = 0.0
        self._all_cores = max(1, int(allowed_cores()))
        self._calls = [0] * len(cases)  # of one repetition; 0: dropped
        self._cost_s, self._first_s, self._check_s = ([0.0] * len(cases) for _ in range(3))
        self._check_again: list[int] = []
        self.not_measured: dict[str, str] = {}
        self.found = [RawCase(name=case.name, unit=case.unit, work=case.work, checked=case.checked) for case in cases]
        for case, one in zip(cases, self.found, strict=True):
            one.labels = dict(case.labels)

    def _takes_part(self, case: Case) -> bool:
        return case.who != "first" or self.team.rank == 0

    def _threads(self, who: Who) -> None:
        if self._torch is not None and not self._is_gpu:
            here = self.team.hosts.count(socket.gethostname())
            self._torch.set_num_threads(self._all_cores if who == "first" else max(1, self._all_cores // here))

    def _left_s(self) -> float:
        return self._time_s - (time.monotonic() - self._began)

    def warm(self) -> None:
        """Each once, with its check; what fails is out, and ends its curve.

        Each curve has a fair part of what is left of the time; what some leave over, others get in another pass.
        """
        until = time.monotonic() + self._left_s() * _SHARE_OF_WARMING
        waiting = list(range(len(self.cases)))
        failed: dict[str, str] = {}
        for _ in range(_PASSES):
            waiting = self._warm(waiting, until, failed)
        for index in waiting:
            self._drop(index, "there was no time for it: --time")

    def _warm(self, indexes: list[int], until: float, failed: dict[str, str]) -> list[int]:
        """Those that there was no time for. The next size of a curve is taken to cost as much more as it has work."""
        curves = {index: self.cases[index].curve or f"#{index}" for index in indexes}
        ended: set[str] = set()  # the first rank's counts
        spent: dict[str, float] = {}
        left_out: list[int] = []
        for place, index in enumerate(indexes):
            case, curve = self.cases[index], curves[index]
            if curve in failed:
                self._drop(index, failed[curve])
                continue
            before = index - 1 if index and case.curve and self.cases[index - 1].curve == case.curve else None
            expected_s = 0.0
            if before is not None:
                growth = case.work / self.cases[before].work
                expected_s = growth * (self._first_s[before] + self._check_s[before])
                later = len({curves[one] for one in indexes[place:]} - ended)
                left_s = until - time.monotonic() + spent.get(curve, 0.0)
                if spent.get(curve, 0.0) + expected_s > max(left_s / max(later, 1), 0.0):
                    ended.add(curve)
            if self.team.of_first(curve in ended):
                ended.add(curve)
                left_out.append(index)
                continue
            self._threads(case.who)
            told = self.team.gathered(self._first_call(index, case))
            # What started in it (a context, a communicator, a library) is no cost of the next size: it is made again.
            took_s = max(took + check for took, check, _ in told)
            has_next = index + 1 < len(self.cases) and case.curve and self.cases[index + 1].curve == case.curve
            if has_next and took_s > max(_COLD_S, _COLD_TIMES * expected_s):
                told = self.team.gathered(self._first_call(index, case))
            problem = next((problem for *_, problem in told if problem), "")
            if problem:
                failed[curve] = problem
                self._drop(index, problem)
                continue
            self._first_s[index] = slowest = max(took for took, _, _ in told)
            self._check_s[index] = max(check for _, check, _ in told)
            spent[curve] = spent.get(curve, 0.0) + slowest + self._check_s[index]
            sample_s = max(self._sample_s, case.sample_s)
            calls = int(min(max(1.0, sample_s / max(slowest, 1e-7)), case.max_calls))
            self._calls[index] = calls
            self._cost_s[index] = (calls + 1) * slowest * (self.team.size if case.who == "turns" else 1)
            if self.team.rank == 0:
                _tell({"progress": [sum(map(bool, self._calls)), len(self.cases), f"preparing {case.name}"]})
        return left_out

    def _first_call(self, index: int, case: Case) -> tuple[float, float, str]:
        """Seconds of a call and of its check, and why it cannot be measured."""
        if not self._takes_part(case):
            return 0.0, 0.0, ""
        try:
            began = time.perf_counter()
            wrong = case.check()
            case.sync()
            check_s = time.perf_counter() - began
            case.before()
            began = time.perf_counter()
            case.call()
            case.sync()
            took = time.perf_counter() - began
        except CannotMeasureError as error:
            return 0.0, 0.0, str(error)
        except (RuntimeError, NotImplementedError, ValueError, AttributeError, TypeError, OSError) as error:
            return 0.0, 0.0, f"it failed: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"
        self.found[index].labels = dict(case.labels)  # with what the check has read
        if wrong:
            self.found[index].wrong = wrong
        return took, check_s, ""

    def _drop(self, index: int, why: str) -> None:
        self._calls[index] = 0
        case = self.cases[index]
        kind = case.labels.get("dtype") if case.name == "matmul" else case.labels.get("group")
        what = f"{case.name} {kind}" if kind else case.name
        if index and case.curve and self.cases[index - 1].curve == case.curve:
            if not self._calls[index - 1]:
                return  # it was said of the one before
            what += f", the {'shapes' if case.name == 'matmul' else 'sizes'} above"
        self.not_measured.setdefault(what, why)

    def measure(self) -> None:
        """Rounds until the time is up; what three rounds have no time for is dropped first, the dearest of all."""
        self._check_again = self.team.of_first(self._cheapest_checks())
        for index in self.team.of_first(self._too_dear()):
            self._drop(index, "there was no time for it: --time")
        done = 0
        while self.team.of_first(done < MIN_ROUNDS or self._has_time(done)):
            round_began = time.monotonic()
            for index, case in enumerate(self.cases):
                if self._calls[index]:
                    self._sample(index, case)
            done += 1
            self._round_s = time.monotonic() - round_began
            if self.team.rank == 0:
                _tell({"progress": [done, self._num_rounds(done), "measuring"]})

    def _cheapest_checks(self) -> list[int]:
        """As many as a tenth of the time has room for, the cheapest first: so of a curve its largest are left out."""
        order = sorted((i for i, calls in enumerate(self._calls) if calls), key=lambda index: self._check_s[index])
        self._reserved_s, kept = 0.0, []
        for index in order:
            if self._reserved_s + self._check_s[index] <= _SHARE_OF_CHECKS * self._time_s:
                self._reserved_s += self._check_s[index]
                kept.append(index)
        return kept

    def _time_for_rounds_s(self) -> float:
        return self._left_s() - self._reserved_s

    def _too_dear(self) -> list[int]:
        """The dear upper ends of curves, and what alone would take a third of the time; the rest is worth it."""
        left = self._time_for_rounds_s() / (MIN_ROUNDS + 1)
        kept = sorted((i for i, calls in enumerate(self._calls) if calls), key=lambda index: self._cost_s[index])
        dropped = []
        for index in reversed(kept):
            curve = self.cases[index].curve
            is_lowest = not curve or index == 0 or self.cases[index - 1].curve != curve
            cost_s = self._cost_s[index]
            is_dear = cost_s * MIN_ROUNDS > self._time_s / 3 if is_lowest else cost_s > _CHEAP * self._sample_s
            if is_dear and sum(self._cost_s[one] for one in kept) > left:
                dropped.append(index)
                kept.remove(index)
        return sorted(dropped)

    def _has_time(self, done: int) -> bool:
        return done < MAX_ROUNDS and self._time_for_rounds_s() > self._round_s * 1.1

    def _num_rounds(self, done: int) -> int:
        if done < MIN_ROUNDS:
            return MIN_ROUNDS
        return min(MAX_ROUNDS, done + max(0, int(self._time_for_rounds_s() / max(self._round_s, 1e-3))))

    def _sample(self, index: int, case: Case) -> None:
        self._threads(case.who)
        turns = range(self.team.size) if case.who == "turns" else range(1)
        for turn in turns:
            self.team.wait()
            if case.who == "turns" and turn != self.team.rank:
                continue
            if not self._takes_part(case) or case.labels.get("members") == ():
                continue
            calls = self._calls[index]
            if self._cost_s[index] < 1:  # threads asleep, clocks gone down: not what is measured
                case.call()
            case.before()
            case.sync()
            began = time.perf_counter()
            for _ in range(calls):
                case.call()
            case.sync()
            took = (time.perf_counter() - began) / calls
            self.found[index].seconds.append(took)
            # The slowest rank's first call decides, so that all ranks of a group make the same calls.
            queued_calls = calls_of(self._first_s[index]) if case.queued is not None else 0
            if case.queued is not None and queued_calls:
                try:
                    self.found[index].queued_seconds.append(case.queued(queued_calls, took))
                except RuntimeError:  # the time as called stands
                    self.found[index].queued_seconds.append(None)

    def check_again(self) -> None:
        """After all repetitions: what was right only once is no better than what was wrong at once."""
        for index in self._check_again:
            case = self.cases[index]
            if self._calls[index] and self._takes_part(case):
                self._threads(case.who)
                self.found[index].wrong = self.found[index].wrong or case.check()


def _device_name(torch: Any, device: Any) -> str:
    if device is not None and device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    for line in Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def _software(torch: Any, is_gpu: bool) -> str:
    import numpy

    if torch is None:
        return f"numpy {numpy.__version__}"
    if not is_gpu:
        return f"torch {torch.__version__}"
    found = f"torch {torch.__version__}, CUDA {torch.version.cuda or torch.version.hip}"
    return f"{found}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if torch.version.cuda else found


def about() -> int:
    """What there is to measure with: a line of JSON."""
    torch = _torch()
    num_gpus = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
    sys.stdout.buffer.write(msgspec.json.encode(About(has_torch=torch is not None, num_gpus=num_gpus)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(about() if sys.argv[1:] == ["--about"] else main())
