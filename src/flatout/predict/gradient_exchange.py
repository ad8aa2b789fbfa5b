"""What it takes to exchange gradients, plainly or compressed, and whether a compression pays.

In: a measured link, the number of ranks, the bytes of the gradients in fp32. Out: seconds, and bytes on the wire. A
compression pays if it takes less time on the link than it takes to compress, of the part that the backward pass does
not hide:

    compress_s + bytes / bandwidth + messages * latency < the same for fp32, where it is exposed

What it does to the training is not judged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flatout.predict.collective_time import Link, Operation, bytes_sent, collective_s

PLAIN = "fp32"
MIN_GAIN = 1.05  # a smaller gain is within the error of the model
_SCALES = 260 / 256  # 8-bit blocks of 256 entries with a scale of 4 bytes
_LOW_RANK = {"powersgd-1": 0.03, "powersgd-2": 0.05}  # of the bytes, with the parameters that stay whole: a prior


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    operation: Operation
    num_bytes: float  # the larger of its input and output


class GradientExchange(msgspec.Struct, frozen=True, kw_only=True):
    """How gradients are exchanged: collectives that follow each other, and the work on the device between them."""

    calls: tuple[CollectiveCall, ...]
    codec_s: float

    def link_s(self, link: Link, num_ranks: int) -> float:
        return sum(collective_s(link, call.operation, call.num_bytes, num_ranks) for call in self.calls)

    def wire_bytes(self, num_ranks: int) -> float:
        """Return the bytes that each rank sends."""
        return sum(bytes_sent(call.operation, call.num_bytes, num_ranks) for call in self.calls)


# Nanoseconds to compress and restore a byte of fp32 gradients, where they were not measured on the job's own machine.
# On GPUs these are priors: casts read and write at about 2 TB/s; int8 does so a dozen times; low rank and selection
# launch many small kernels and are far above their reads and writes (Agarwal et al., arXiv:2103.00543, find that such
# overheads take back what compression saves). On CPUs: one thread of an otherwise idle machine, what is left of the
# times of benchmarks/slow_network_exchange.py without those on the link.
_GPU_NS = {
    "bf16": 0.002,
    "fp16": 0.002,
    "int8": 0.03,
    "topk-1%": 0.5,
    "topk-10%": 0.5,
    "powersgd-1": 0.1,
    "powersgd-2": 0.1,
}
_CPU_NS = {
    "bf16": 0.6,
    "fp16": 0.45,
    "int8": 3.6,
    "topk-1%": 2.7,
    "topk-10%": 4.9,
    "powersgd-1": 1.05,
    "powersgd-2": 2.3,
}
CODEC_NS = {"cuda": _GPU_NS, "cpu": _CPU_NS}
COMPRESSIONS = tuple(_GPU_NS)
# Least and most of the time to compress as a factor. Of what was measured on the machine without a network, it took 0.6
# to 1.4 times as long in an exchange, and up to 2.6 times as long as there while other work kept the cores busy.
MEASURED_RANGE = (0.6, 2.6)
PRIOR_RANGE = (0.2, 5.0)  # of another machine


def exchange_of(
    compression: str,
    num_bytes: float,
    num_ranks: int,
    device: str = "cuda",
    codec_ns: Mapping[str, float] | None = None,
) -> GradientExchange:
    """Return how gradients of `num_bytes` in fp32 are exchanged. `compression` is PLAIN or one of COMPRESSIONS.

    `codec_ns` is what compressing a byte takes on this machine; None: the times of others.
    """
    if compression == PLAIN:
        return GradientExchange(calls=(CollectiveCall(operation="all_reduce", num_bytes=num_bytes),), codec_s=0.0)
    of_machine = codec_ns or {}
    codec_s = of_machine.get(compression, CODEC_NS[device][compression]) * num_bytes * 1e-9
    return GradientExchange(calls=_calls(compression, num_bytes, num_ranks), codec_s=codec_s)


def _calls(compression: str, num_bytes: float, num_ranks: int) -> tuple[CollectiveCall, ...]:
    if compression in ("bf16", "fp16"):
        return (CollectiveCall(operation="all_reduce", num_bytes=num_bytes / 2),)
    if compression == "int8":
        packed = num_bytes / 4 * _SCALES
        return CollectiveCall(operation="all_to_all", num_bytes=packed), CollectiveCall(
            operation="all_gather", num_bytes=packed
        )
    if compression in _LOW_RANK:
        factor = num_bytes * _LOW_RANK[compression] / 2
        return CollectiveCall(operation="all_reduce", num_bytes=factor), CollectiveCall(
            operation="all_reduce", num_bytes=factor
        )
    share = float(compression.removeprefix("topk-").removesuffix("%")) / 100
    entries = 2 * share * num_bytes  # each with its place
    return (CollectiveCall(operation="all_gather", num_bytes=num_ranks * entries),)


def int8_by_all_gather(num_bytes: float, num_ranks: int) -> GradientExchange:
    """Return the exchange of torch's quantization hook, for comparison: it sends all of a rank to all others."""
    gathered = CollectiveCall(operation="all_gather", num_bytes=num_ranks * num_bytes / 4 * _SCALES)
    return GradientExchange(calls=(gathered,), codec_s=0.0)


def gain(
    compression: str, link: Link, num_bytes: float, num_ranks: int, *, exposed_share: float = 1.0, device: str = "cuda"
) -> float:
    """Return how many times as fast the exposed exchange becomes; below 1 it becomes slower.

    `exposed_share` is the share of the plain exchange that the backward pass does not hide. What is hidden now stays
    hidden, and compressing takes the device's time, which nothing hides.
    """
    plain_s = exchange_of(PLAIN, num_bytes, num_ranks).link_s(link, num_ranks)
    exchange = exchange_of(compression, num_bytes, num_ranks, device)
    hidden_s = plain_s * (1.0 - exposed_share)
    left_s = max(exchange.link_s(link, num_ranks) - hidden_s, 0.0) + exchange.codec_s
    exposed_s = plain_s * exposed_share
    return exposed_s / left_s if left_s > 0 else float("inf")


def paying(
    link: Link, num_bytes: float, num_ranks: int, *, exposed_share: float = 1.0, device: str = "cuda"
) -> Sequence[tuple[str, float]]:
    """Return the compressions that pay, with their gains, the largest first."""
    gains = {
        compression: gain(compression, link, num_bytes, num_ranks, exposed_share=exposed_share, device=device)
        for compression in COMPRESSIONS
    }
    found = [(compression, times) for compression, times in gains.items() if times >= MIN_GAIN]
    return sorted(found, key=lambda pair: -pair[1])
