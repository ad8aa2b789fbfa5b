"""Facts about the machine that a job ran on: the vendors' numbers for GPUs, and errors of the driver."""

from __future__ import annotations

import msgspec


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The vendor's numbers for one GPU as PyTorch counts GPUs: one die of a package with two dies.

    A rate is a peak that no program reaches; a ceiling is the rate that a machine was measured to deliver.
    """

    name: str
    reported_names: tuple[str, ...]  # from `torch.cuda.get_device_name` and a trace's deviceProperties
    vendor: str
    memory_bytes: int  # as sold; the driver provides 1-4 % less
    memory_bytes_per_s: float | None
    # For dense matrix multiplication by operand type (fp32, tf32, bf16, fp16, fp8, fp4), never with sparsity, and with
    # accumulation in fp32 if the vendor distinguishes it. A type is absent if the GPU or the source lacks it.
    peak_flops_per_s: dict[str, float]
    num_sms: int | None  # streaming multiprocessors, or AMD's compute units
    tdp_w: float | None
    link_bytes_per_s: float | None  # all NVLink or Infinity Fabric links, both directions
    note: str = ""  # why a number is missing or halved
    source: str  # the vendor's document
    date: str  # last comparison with the source
    origin: str = "vendor"


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the driver of an NVIDIA GPU logged."""

    number: int
    gpu: int | None = None  # NVML's index; None if only the address is known
    address: str | None = None  # PCI address, e.g. `0000:9b:00`
    hostname: str = ""
