"""What is known of the machine that a job ran on: so far, what the vendors say of their GPUs."""

from __future__ import annotations

import msgspec


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The vendor's numbers for one GPU as PyTorch counts them: of a package with two dies, one die.

    A rate is a peak that no program reaches; what a machine really delivers is a ceiling, and is measured.
    """

    name: str
    reported_names: tuple[str, ...]  # as `torch.cuda.get_device_name` and a trace's deviceProperties give it
    vendor: str
    memory_bytes: int  # as sold: the driver offers 1-4 % less
    memory_bytes_per_s: float | None
    # Of a dense matrix product, by the type of its operands (fp32, tf32, bf16, fp16, fp8, fp4), never with sparsity,
    # and with sums in fp32 where the vendor tells them apart. A type is absent where the GPU or the source lacks it.
    peak_flops_per_s: dict[str, float]
    num_sms: int | None  # streaming multiprocessors, or AMD's compute units
    tdp_w: float | None
    link_bytes_per_s: float | None  # all NVLink or Infinity Fabric links, both directions
    note: str = ""  # why something is missing or halved
    source: str  # the vendor's document
    date: str  # the day on which the numbers were last compared with the source
    origin: str = "vendor"


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the driver of an NVIDIA GPU logged."""

    number: int
    gpu: int | None = None  # NVML's index; None where only its address is known
    address: str | None = None  # on PCI, as in `0000:9b:00`
    hostname: str = ""
