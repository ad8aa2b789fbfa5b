"""Checks of GPU memory: errors, remapped rows, retired pages, and other processes that use it."""

from __future__ import annotations

from flatout.doctor.check import check, fail, info, named, ok, warn
from flatout.doctor.gpu_values import gpu_values
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.nvidia_smi import SmiGpu
from flatout.doctor.unknown import NotReadError

_DCGM = "NVIDIA GPU Debug Guidelines and Memory Error Management, https://docs.nvidia.com/deploy/"
_MOST_REMAPPED_ROWS = 512
_MANY_PAGES, _TOO_MANY_PAGES = 10, 60


@check(
    "gpu-ecc-uncorrectable",
    "gpu",
    topic="uncorrectable GPU memory errors",
    read="`nvidia-smi -q`: ECC Errors, Volatile, uncorrectable counts of SRAM and DRAM",
    expected="0 since the driver was loaded",
    source=_DCGM,
    cost="the job on that GPU ends with an ECC error, or continues with wrong data if containment fails",
    fix="drain the node, reset the GPU, and run the vendor's field diagnostics if errors return",
    when_wrong="an error before the last reset (for a row remapping) is counted until the driver is loaded again",
)
def ecc_uncorrectable(machine: Machine) -> CheckOutcome:
    counts = gpu_values(
        machine,
        _num_uncorrectable,
        "`nvidia-smi -q` reports no volatile uncorrectable error count (ECC may be off or not supported) for any GPU",
    )
    bad = [f"{gpu}: {count:.0f}" for gpu, count in counts.items() if count > 0]
    if bad:
        return counts.judged(fail(f"uncorrectable memory errors on {named(bad)}"))
    return counts.judged(ok(f"0 on {len(counts)} GPUs"))


def _num_uncorrectable(gpu: SmiGpu) -> int | None:
    """Sum the uncorrectable errors; GPUs before Ampere give totals, which already include the others."""
    counts, totals = [], []
    for name, value in gpu.section("ECC Errors/Volatile").items():
        is_uncorrectable = "Uncorrectable" in name or "Double Bit" in name
        if not is_uncorrectable or not value.isdecimal():
            continue
        counts.append(int(value))
        if name.endswith("Total"):
            totals.append(int(value))
    return sum(totals or counts) if counts else None


@check(
    "gpu-sram-correctable",
    "gpu",
    topic="corrected GPU SRAM errors",
    read="`nvidia-smi -q`: ECC Errors, Aggregate, SRAM Correctable",
    expected="at most 10,000 over the GPU's life",
    source="Azure HPC node health checks, https://github.com/Azure/azurehpc-health-checks",
    cost="nothing yet, but such a GPU is more likely to fail during a long run",
    fix="have the GPU examined before a long run",
    when_wrong="the count grows with age and says little about a GPU that has been in use for years",
)
def sram_correctable(machine: Machine) -> CheckOutcome:
    return _corrected(machine, "SRAM", limit=10_000)


@check(
    "gpu-dram-correctable",
    "gpu",
    topic="corrected GPU DRAM errors",
    read="`nvidia-smi -q`: ECC Errors, Aggregate, DRAM Correctable",
    expected="at most 20 million over the GPU's life",
    source="Azure HPC node health checks, https://github.com/Azure/azurehpc-health-checks",
    cost="nothing yet, but such a GPU is more likely to fail during a long run",
    fix="have the GPU examined before a long run",
    when_wrong="the count grows with age and says little about a GPU that has been in use for years",
)
def dram_correctable(machine: Machine) -> CheckOutcome:
    return _corrected(machine, "DRAM", limit=20_000_000)


def _corrected(machine: Machine, memory: str, *, limit: int) -> CheckOutcome:
    counts = gpu_values(
        machine,
        lambda gpu: gpu.number(f"Aggregate/{memory} Correctable"),
        f"`nvidia-smi -q` reports no aggregate count of corrected {memory} errors for any GPU",
    )
    bad = [f"{gpu}: {count:,.0f}" for gpu, count in counts.items() if count > limit]
    if bad:
        return counts.judged(warn(f"many corrected {memory} errors: {named(bad)}"))
    return counts.judged(ok(f"at most {max(counts.values()):,.0f}"))


@check(
    "gpu-sram-threshold",
    "gpu",
    topic="GPU SRAM error threshold",
    read="`nvidia-smi -q`: ECC Errors, Aggregate, SRAM Threshold Exceeded",
    expected="No",
    source=_DCGM,
    cost="the GPU meets the vendor's criterion for replacement: expect crashes",
    fix="return the GPU",
    when_wrong="no known case",
)
def sram_threshold(machine: Machine) -> CheckOutcome:
    answers = gpu_values(
        machine,
        lambda gpu: gpu.text("SRAM Threshold Exceeded"),
        "`nvidia-smi -q` has no SRAM Threshold Exceeded: the GPU or its driver is too old",
    )
    exceeded = [gpu for gpu, answer in answers.items() if answer == "Yes"]
    if exceeded:
        return answers.judged(fail(f"the threshold of SRAM errors is exceeded on {named(exceeded)}"))
    return answers.judged(ok(f"not exceeded on {len(answers)} GPUs"))


@check(
    "gpu-row-remap",
    "gpu",
    topic="GPU memory row remapping",
    read="`nvidia-smi -q`: Remapped Rows, Pending, Remapping Failure Occurred and Uncorrectable Error",
    expected="No and No, and at most 512 rows for uncorrectable errors",
    source=_DCGM,
    cost="pending: the bad row is in use until the next reset; failed: the errors will return",
    fix="pending: reset the GPU between jobs; failed: return the GPU",
    when_wrong="GPUs before Ampere have no remapping (see gpu-retired-pages)",
)
def row_remap(machine: Machine) -> CheckOutcome:
    states = gpu_values(machine, _remap_state, "`nvidia-smi -q` has no Remapped Rows")
    bad = [f"{gpu} ({state})" for gpu, state in states.items() if state != "none"]
    for gpu in machine.gpus:
        num_rows = gpu.number("Remapped Rows/Uncorrectable Error")
        if num_rows is not None and num_rows > _MOST_REMAPPED_ROWS:
            bad.append(f"{gpu.address} ({num_rows:.0f} rows)")
    if bad:
        return states.judged(fail(f"memory rows must be remapped on {named(bad)}"))
    return states.judged(ok(f"none on {len(states)} GPUs"))


def _remap_state(gpu: SmiGpu) -> str | None:
    """Return `failed`, `pending` or `none`; None if the GPU does not give both."""
    pending = gpu.text("Remapped Rows/Pending")
    failed = gpu.text("Remapping Failure Occurred")
    if failed == "Yes":
        return "failed"
    if pending == "Yes":
        return "pending"
    return None if pending is None or failed is None else "none"


@check(
    "gpu-row-remap-banks",
    "gpu",
    topic="spare rows in the GPU memory banks",
    read="`nvidia-smi -q`: Remapped Rows, Bank Remap Availability Histogram, None and Low",
    expected="0 banks without, or with few, spare rows",
    source=_DCGM,
    cost="nothing yet, but the next bad row in such a bank cannot be replaced",
    fix="plan to replace the GPU",
    when_wrong="no known case",
)
def row_remap_banks(machine: Machine) -> CheckOutcome:
    num_banks = gpu_values(machine, _num_exhausted_banks, "`nvidia-smi -q` reports no histogram of banks for any GPU")
    bad = [f"{gpu}: {count:.0f} banks" for gpu, count in num_banks.items() if count]
    if bad:
        return num_banks.judged(warn(f"memory banks with few spare rows on {named(bad)}"))
    return num_banks.judged(ok(f"every bank of {len(num_banks)} GPUs has spare rows"))


def _num_exhausted_banks(gpu: SmiGpu) -> float | None:
    levels = (gpu.number(f"Bank Remap Availability Histogram/{level}") for level in ("None", "Low"))
    counts = [count for count in levels if count is not None]
    return sum(counts) if counts else None


@check(
    "gpu-retired-pages",
    "gpu",
    topic="retired GPU memory pages",
    read="`nvidia-smi -q`: Retired Pages, single bit, double bit and pending",
    expected="none pending, and fewer than 60 in total (the vendor's limit for return); investigate if more than 10",
    source="NVIDIA Dynamic Page Retirement, https://docs.nvidia.com/deploy/dynamic-page-retirement/",
    cost="a pending page is still in use: the next access may end the job",
    fix="pending: reset the GPU; 60 or more: return it",
    when_wrong="Ampere and newer remap rows instead, and report N/A here",
)
def retired_pages(machine: Machine) -> CheckOutcome:
    try:
        pages = gpu_values(machine, _num_retired_pages, "`nvidia-smi -q` has no Retired Pages")
    except NotReadError:
        if any(gpu.section("Remapped Rows") for gpu in machine.gpus):
            return info("these GPUs remap rows instead of retiring pages")
        raise
    pending, too_many, many = [], [], []
    for gpu in machine.gpus:
        count = pages.get(gpu.address, 0)
        if gpu.address in pages and _has_pending_page(gpu):
            pending.append(gpu.address)
        if count >= _TOO_MANY_PAGES:
            too_many.append(f"{gpu.address}: {count}")
        elif count > _MANY_PAGES:
            many.append(f"{gpu.address}: {count}")
    if pending or too_many:
        groups = {"pending": pending, "60 or more": too_many, "more than 10": many}
        shown = "; ".join(f"{group} on {named(gpus)}" for group, gpus in groups.items() if gpus)
        return fail(f"retired pages: {shown}")
    if many:
        return warn(f"many retired pages: {named(many)}")
    return pages.judged(ok(f"at most {max(pages.values())}, none pending"))


def _num_retired_pages(gpu: SmiGpu) -> int | None:
    causes = (gpu.number(f"Retired Pages/{cause} ECC") for cause in ("Single Bit", "Double Bit"))
    counts = [int(count) for count in causes if count is not None]
    return sum(counts) if counts else None


def _has_pending_page(gpu: SmiGpu) -> bool:
    return gpu.text("Pending Page Blacklist", "Retired Pages/Pending") == "Yes"


@check(
    "gpu-memory-free",
    "gpu",
    topic="GPU memory used by other processes",
    read="`nvidia-smi -q`: FB Memory Usage, Used, and Processes",
    expected="before the job starts, at most what the driver itself uses: 700 MiB, or 3 % on large GPUs",
    source="proposed by Flatout, uncalibrated; checkers that allow 15 MiB flag the driver's own use on newer GPUs",
    cost="the job has less memory, and the rank on the shared GPU is late in every step",
    fix="end processes left by an earlier job, or find out who else uses the node",
    when_wrong="while a job is running, its own memory is counted",
)
def memory_free(machine: Machine) -> CheckOutcome:
    used = gpu_values(
        machine,
        lambda gpu: gpu.number("FB Memory Usage/Used"),
        "`nvidia-smi -q` reports no memory in use for any GPU",
    )
    bad = []
    for gpu in machine.gpus:
        used_mib = used.get(gpu.address, 0)
        if used_mib > _idle_driver_mib(gpu):
            bad.append(f"{gpu.address}: {used_mib:,.0f} MiB")
    if bad:
        return used.judged(warn(f"GPU memory is already in use: {named(bad)}"))
    return used.judged(ok(f"at most {max(used.values()):,.0f} MiB in use"))


def _idle_driver_mib(gpu: SmiGpu) -> float:
    """Return the maximum memory in MiB that an idle driver uses: about 3 % on large GPUs."""
    total_mib = gpu.number("FB Memory Usage/Total") or 0
    return max(700, 0.03 * total_mib)
