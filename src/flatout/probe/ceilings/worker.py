"""One rank of `flatout bench`: `python -m flatout.probe.ceilings.worker`, with the settings as JSON on standard input.

In: the settings; `_benchmarks` turns them into the benchmarks to measure here, and `rounds` measures them. Out: on
the first rank, lines of JSON on standard output: progress, and every repetition of every rank, at the end and as soon
as they suffice for a result. Without torch there is one rank, which uses numpy.
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

from flatout.probe.ceilings import copy, decode, launch_rate, matmul, pairs, storage, transfer
from flatout.probe.ceilings.benchmark import Benchmark, Who
from flatout.probe.ceilings.bus import COLLECTIVES
from flatout.probe.ceilings.current_benchmark import CurrentBenchmark
from flatout.probe.ceilings.energy import energy_counter
from flatout.probe.ceilings.link import pci_address
from flatout.probe.ceilings.names import concerns
from flatout.probe.ceilings.rank_group import RankGroup, tell
from flatout.probe.ceilings.raw import About, BenchSettings, Raw, RawBenchmark
from flatout.probe.ceilings.rounds import Rounds
from flatout.probe.limits import allowed_cores, free_bytes

_COLLECTIVES = "collectives"
_SHARE_OF_MEMORY = 0.5  # share of the free memory, for the collectives


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that files written here are removed on exit
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=BenchSettings)
    began = time.monotonic()
    torch = _torch()
    rank_group = RankGroup(settings, torch)
    local_rank = int(os.environ.get("LOCAL_RANK", rank_group.rank))
    is_gpu = torch is not None and settings.uses_gpu
    device = None
    if torch is not None:
        device = torch.device("cuda", local_rank % torch.cuda.device_count()) if is_gpu else torch.device("cpu")
        if is_gpu:
            torch.cuda.set_device(device)
            torch.set_num_threads(max(1, int(allowed_cores()) // rank_group.hosts.count(socket.gethostname())))
    where = CurrentBenchmark(Path(settings.meeting_file).parent if settings.meeting_file else None, rank_group.rank)
    devices = rank_group.gathered(_device_name(torch, device))
    not_measured: dict[str, str] = {}

    def tell_result() -> None:
        """Gather the results of all ranks; the first rank reports them."""
        encoded = rank_group.gathered([_bytes(benchmark) for benchmark in rounds.found])
        missing: dict[str, str] = {}
        for of_rank in rank_group.gathered(not_measured | rounds.not_measured):
            missing |= {what: why for what, why in of_rank.items() if concerns(what, settings.only)}
        if rank_group.rank == 0:
            raw = Raw(
                benchmarks=tuple(
                    tuple(msgspec.json.decode(benchmark, type=RawBenchmark) for benchmark in rank) for rank in encoded
                ),
                devices=tuple(devices),
                hosts=tuple(rank_group.hosts),
                is_gpu=is_gpu,
                backend=_backend(rank_group, is_gpu),
                software=_software(torch, is_gpu),
                not_measured=missing,
            )
            tell({"raw": msgspec.to_builtins(raw)})

    with ExitStack() as stack:
        benchmarks = _benchmarks(settings, torch, device, rank_group, stack, not_measured, where)
        rounds = Rounds(benchmarks, settings, rank_group, torch, began, is_gpu, where)
        rounds.warm()
        if is_gpu:
            rounds.note_power(energy_counter(pci_address(torch, device)))
        rounds.measure(tell_result if settings.meeting_file else _nothing)
        rounds.check_again()
        where.at(None)
    tell_result()
    rank_group.leave()
    return 0


def _backend(rank_group: RankGroup, is_gpu: bool) -> str:
    if rank_group.size == 1:
        return ""
    return "nccl" if is_gpu else "gloo"


def _bytes(benchmark: RawBenchmark) -> bytes:
    return msgspec.json.encode(benchmark)


def _torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch


def _benchmarks(
    settings: BenchSettings,
    torch: Any,
    device: Any,
    rank_group: RankGroup,
    stack: ExitStack,
    not_measured: dict[str, str],
    where: CurrentBenchmark,
) -> list[Benchmark]:
    """Return the benchmarks, the same list on every rank: in a benchmark of the first rank alone, the others wait."""

    def wants(*names: str) -> bool:
        return not settings.only or any(name in settings.only for name in names)

    benchmarks: list[Benchmark] = []
    if torch is None:
        benchmarks += _numpy_benchmarks(not_measured, has_matmul=wants("matmul"))
    elif device.type == "cuda":
        benchmarks += _gpu_benchmarks(torch, device, rank_group, not_measured)
    else:
        benchmarks += _cpu_benchmarks(torch, device, rank_group, not_measured)
    if _COLLECTIVES in settings.without:
        not_measured[_COLLECTIVES] = settings.without[_COLLECTIVES]
    elif wants(*COLLECTIVES, *pairs.NAMES):
        where.at(_COLLECTIVES)  # their buffers are among the largest, so a rank can be lost here
        if wants(*COLLECTIVES):
            benchmarks += _collectives(torch, device, rank_group, not_measured)
        benchmarks += _pairs(torch, device, rank_group, not_measured)
        where.at(None)
    if wants("decode_jpeg", "decode_zlib"):
        benchmarks += decode.benchmarks()
    not_measured |= decode.lacks()
    if settings.path is None:
        not_measured["storage"] = "no path was given: --path DIR"
    elif wants(*storage.NAMES):
        benchmarks += _storage_benchmarks(Path(settings.path), settings, rank_group, stack, not_measured)
    return [benchmark for benchmark in benchmarks if wants(benchmark.name)]


def _num_cores() -> int:
    return max(1, int(allowed_cores()))


def _numpy_benchmarks(not_measured: dict[str, str], *, has_matmul: bool) -> list[Benchmark]:
    not_measured["collectives"] = not_measured["operator_dispatch"] = "torch is not installed here"
    not_measured["matmul bf16"] = "numpy has no such type"
    host_copy = copy.memcpy_benchmark(who="first", array_bytes=_array_bytes(), threads=_num_cores())
    return [*(matmul.numpy_benchmarks() if has_matmul else []), host_copy]


def _gpu_benchmarks(torch: Any, device: Any, rank_group: RankGroup, not_measured: dict[str, str]) -> list[Benchmark]:
    not_measured |= matmul.lacks(torch, device)
    free_bytes_of_gpu = min(rank_group.gathered(torch.cuda.mem_get_info(device)[0]))
    shapes = matmul.fitting(matmul.GPU_SHAPES, free_bytes_of_gpu)
    for shape in matmul.GPU_SHAPES:
        if shape not in shapes:
            name = f"matmul {' x '.join(map(str, shape))}"
            not_measured[name] = f"memory: {free_bytes_of_gpu / 1e9:.1f} GB of a GPU are free"
    gpu_bytes = min(1 << 30, int(free_bytes_of_gpu / 16)) // 4096 * 4096
    host_copy = copy.memcpy_benchmark(who="first", array_bytes=_array_bytes(), threads=_num_cores())
    host_copy.name = "host_memory_copy"
    return [
        *matmul.torch_benchmarks(torch, device, who="each", shapes=shapes),
        *copy.torch_benchmarks(torch, device, who="each", array_bytes=gpu_bytes, threads=None),
        *transfer.torch_benchmarks(torch, device),
        host_copy,
        launch_rate.torch_benchmark(torch, device),
    ]


def _cpu_benchmarks(torch: Any, device: Any, rank_group: RankGroup, not_measured: dict[str, str]) -> list[Benchmark]:
    not_measured |= matmul.lacks(torch, device)
    not_measured["host_to_device, device_to_host"] = "torch sees no GPU"
    num_cores, array_bytes = _num_cores(), _array_bytes()
    sides: list[tuple[Who, int, int]] = [("first", array_bytes, num_cores)]
    if rank_group.size > 1:  # all ranks at the same time, to compare them as peers
        sides.append(("each", array_bytes // rank_group.size, max(1, num_cores // rank_group.size)))
    benchmarks = list(matmul.torch_benchmarks(torch, device, who="first", shapes=matmul.CPU_SHAPES))
    for who, size, threads in sides:
        benchmarks.append(copy.memcpy_benchmark(who=who, array_bytes=size, threads=threads))
        benchmarks += copy.torch_benchmarks(torch, device, who=who, array_bytes=size, threads=threads)
    return [*benchmarks, launch_rate.torch_benchmark(torch, device)]


def _storage_benchmarks(
    folder: Path, settings: BenchSettings, rank_group: RankGroup, stack: ExitStack, not_measured: dict[str, str]
) -> list[Benchmark]:
    """Return the first rank's benchmarks; on other ranks, benchmarks of the same names that only wait."""
    benchmarks: list[Benchmark] = []
    if rank_group.rank == 0:
        benchmarks, missing = stack.enter_context(
            storage.storage_benchmarks(folder, allow_write=settings.allow_write, prefix=settings.folder_prefix)
        )
        not_measured |= missing
    names = rank_group.of_first([benchmark.name for benchmark in benchmarks])
    return benchmarks or [_waiting(name) for name in names]


def _waiting(name: str) -> Benchmark:
    return Benchmark(name=name, unit="B/s", work=1.0, call=_nothing, check=_nothing, checked="", who="first")


def _nothing() -> None:
    pass


def _collectives(torch: Any, device: Any, rank_group: RankGroup, not_measured: dict[str, str]) -> list[Benchmark]:
    if torch is None:
        return []
    if rank_group.size == 1:
        not_measured["collectives"] = "they need at least 2 ranks"
        return []
    from flatout.probe.ceilings.collectives import LARGEST_BYTES, SMALLEST_BYTES, Collectives, bytes_needed

    is_gpu = device.type == "cuda"
    if is_gpu:
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = free_bytes() / rank_group.hosts.count(socket.gethostname())
    usable = min(rank_group.gathered(free)) * _SHARE_OF_MEMORY
    largest = LARGEST_BYTES
    while largest > SMALLEST_BYTES and bytes_needed(largest, is_gpu=is_gpu) > usable:
        largest //= 2
    names = sorted(set(rank_group.hosts))
    hosts = [names.index(host) for host in rank_group.hosts]
    collectives = Collectives(torch, device, largest=largest, step=1 if is_gpu else 2, hosts=hosts)
    if largest < LARGEST_BYTES:
        needed = bytes_needed(LARGEST_BYTES, is_gpu=is_gpu)
        why = (
            f"memory: {LARGEST_BYTES:,} B need {needed / 1e9:.1f} GB per rank, but only {usable / 1e9:.1f} can be used"
        )
        not_measured[f"collectives above {collectives.sizes[-1]:,} B"] = why
    return list(collectives.benchmarks())


def _pairs(torch: Any, device: Any, rank_group: RankGroup, not_measured: dict[str, str]) -> list[Benchmark]:
    """Return the benchmarks between pairs of ranks, and between the GPUs of this host."""
    if torch is None:
        return []
    if rank_group.size == 1:
        not_measured["pair_send, pair_round_trip"] = "they need at least 2 ranks"
        return []
    if rank_group.size > pairs.MOST_RANKS:
        reason = f"{rank_group.size} ranks have too many pairs: at most {pairs.MOST_RANKS} ranks"
        not_measured["pair_send, pair_round_trip"] = reason
        return []
    largest = min(rank_group.gathered(free_bytes())) // (8 * rank_group.size)
    benchmarks = list(pairs.Pairs(torch, device, largest=max(largest // 4096 * 4096, 4096)).benchmarks())
    if device.type != "cuda":
        not_measured["peer_write, peer_read"] = "torch sees no GPU"
        return benchmarks
    here = rank_group.hosts.count(socket.gethostname())
    counts = {rank_group.hosts.count(host) for host in rank_group.hosts}
    if torch.cuda.device_count() < here or len(counts) > 1:
        not_measured["peer_write, peer_read"] = "the ranks do not see each other's GPUs, or hosts differ in number"
        return benchmarks
    peers = [torch.device("cuda", place) for place in range(here)]
    return [*benchmarks, *pairs.peer_benchmarks(torch, device, peers, rank_group.rank)]


def _array_bytes() -> int:
    """Return a size larger than any cache, and small compared with the memory."""
    return min(256 << 20, int(free_bytes() / 16)) // 4096 * 4096


def _device_name(torch: Any, device: Any) -> str:
    if device is not None and device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model_names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return model_names[0] if model_names else "CPU"


def _software(torch: Any, is_gpu: bool) -> str:
    import numpy

    if torch is None:
        return f"numpy {numpy.__version__}"
    if not is_gpu:
        return f"torch {torch.__version__}"
    if not torch.version.cuda:
        return f"torch {torch.__version__}, CUDA {torch.version.hip}"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}"


def about() -> int:
    """Print whether torch is installed and how many GPUs it sees, as a line of JSON."""
    torch = _torch()
    num_gpus = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
    sys.stdout.buffer.write(msgspec.json.encode(About(has_torch=torch is not None, num_gpus=num_gpus)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(about() if sys.argv[1:] == ["--about"] else main())
