"""Memory of the GPUs: errors, rows and pages that were taken out of use, and who else holds some."""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.parse.nvidia_smi import SmiGpu
from flatout.doctor.unknown import NotReadError

_DCGM = "NVIDIA GPU Debug Guidelines and Memory Error Management, https://docs.nvidia.com/deploy/"


def _each(machine: Machine, value: Callable[[SmiGpu], float | None], what: str) -> tuple[dict[str, float], int]:
    """GPU -> value, and how many gave none."""
    values = {gpu.address: number for gpu in machine.gpus if (number := value(gpu)) is not None}
    need(list(values), f"`nvidia-smi -q` gives no {what} for any GPU")
    return values, len(machine.gpus) - len(values)


def _sum(gpu: SmiGpu, section: str, *words: str) -> float | None:
    """The sum of the numbers in a section whose names hold a word."""
    found = {
        name: int(value)
        for name, value in gpu.section(section).items()
        if value.isdecimal() and any(word in name for word in words)
    }
    totals = [value for name, value in found.items() if name.endswith("Total")]  # GPUs before Ampere
    return sum(totals or found.values()) if found else None


@check(
    "gpu-ecc-uncorrectable",
    "gpu",
    title="no GPU has uncorrectable memory errors since the driver was loaded",
    read="`nvidia-smi -q`: ECC Errors, Volatile, uncorrectable counts of SRAM and DRAM",
    expected="0",
    source=_DCGM,
    cost="the job on that GPU ends with an ECC error, or computes with wrong data where containment fails",
    fix="drain the node, reset the GPU, and run the vendor's field diagnostics if the count returns",
    when_wrong="an error before the last reset of a row remapping stays counted until the driver is loaded again",
)
def ecc_uncorrectable(machine: Machine) -> CheckOutcome:
    values, missing = _each(
        machine,
        lambda gpu: _sum(gpu, "ECC Errors/Volatile", "Uncorrectable", "Double Bit"),
        "volatile uncorrectable error count (ECC may be off or not supported)",
    )
    bad = [f"{gpu}: {count:.0f}" for gpu, count in values.items() if count > 0]
    outcome = fail(f"uncorrectable errors on {named(bad)}") if bad else ok(f"0 on {len(values)} GPUs")
    return with_missing(outcome, missing, "GPUs gave no count")


@check(
    "gpu-sram-correctable",
    "gpu",
    title="the count of corrected SRAM errors is small",
    read="`nvidia-smi -q`: ECC Errors, Aggregate, SRAM Correctable",
    expected="at most 10,000 over the GPU's life",
    source="Azure HPC node health checks, https://github.com/Azure/azurehpc-health-checks",
    cost="nothing yet: such a GPU is more likely to fail in a long run",
    fix="have the GPU examined before a long run",
    when_wrong="the count grows with age; it says little of a GPU that has run for years",
)
def sram_correctable(machine: Machine) -> CheckOutcome:
    values, missing = _each(
        machine, lambda gpu: gpu.number("Aggregate/SRAM Correctable"), "aggregate count of corrected SRAM errors"
    )
    bad = [f"{gpu}: {count:,.0f}" for gpu, count in values.items() if count > 10_000]
    outcome = warn(f"many corrected errors: {named(bad)}") if bad else ok(f"at most {max(values.values()):,.0f}")
    return with_missing(outcome, missing, "GPUs gave no count")


@check(
    "gpu-dram-correctable",
    "gpu",
    title="the count of corrected DRAM errors is small",
    read="`nvidia-smi -q`: ECC Errors, Aggregate, DRAM Correctable",
    expected="at most 20 million over the GPU's life",
    source="Azure HPC node health checks, https://github.com/Azure/azurehpc-health-checks",
    cost="nothing yet: such a GPU is more likely to fail in a long run",
    fix="have the GPU examined before a long run",
    when_wrong="the count grows with age; it says little of a GPU that has run for years",
)
def dram_correctable(machine: Machine) -> CheckOutcome:
    values, missing = _each(
        machine, lambda gpu: gpu.number("Aggregate/DRAM Correctable"), "aggregate count of corrected DRAM errors"
    )
    bad = [f"{gpu}: {count:,.0f}" for gpu, count in values.items() if count > 20_000_000]
    outcome = warn(f"many corrected errors: {named(bad)}") if bad else ok(f"at most {max(values.values()):,.0f}")
    return with_missing(outcome, missing, "GPUs gave no count")


@check(
    "gpu-sram-threshold",
    "gpu",
    title="no GPU has passed its own limit of SRAM errors",
    read="`nvidia-smi -q`: ECC Errors, Aggregate, SRAM Threshold Exceeded",
    expected="No",
    source=_DCGM,
    cost="the vendor's criterion for replacing the GPU is met: expect crashes",
    fix="return the GPU",
    when_wrong="never seen to be",
)
def sram_threshold(machine: Machine) -> CheckOutcome:
    values = {gpu.address: gpu.text("SRAM Threshold Exceeded") for gpu in machine.gpus}
    known = {gpu: value for gpu, value in values.items() if value}
    need(list(known), "`nvidia-smi -q` has no SRAM Threshold Exceeded: the GPU or its driver is too old for it")
    bad = [gpu for gpu, value in known.items() if value == "Yes"]
    outcome = fail(f"limit passed on {named(bad)}") if bad else ok(f"No on {len(known)} GPUs")
    return with_missing(outcome, len(values) - len(known), "GPUs did not say")


@check(
    "gpu-row-remap",
    "gpu",
    title="no row remapping is pending or has failed, and few were needed",
    read="`nvidia-smi -q`: Remapped Rows, Pending, Remapping Failure Occurred and Uncorrectable Error",
    expected="No and No, and at most 512 rows for uncorrectable errors",
    source=_DCGM,
    cost="pending: the bad row is still in use until a reset; failed: errors will return",
    fix="pending: reset the GPU between jobs; failed: return the GPU",
    when_wrong="GPUs before Ampere have no remapping (see gpu-retired-pages)",
)
def row_remap(machine: Machine) -> CheckOutcome:
    found = {
        gpu.address: (gpu.text("Remapped Rows/Pending"), gpu.text("Remapping Failure Occurred")) for gpu in machine.gpus
    }
    known = {gpu: pair for gpu, pair in found.items() if None not in pair or "Yes" in pair}
    need(list(known), "`nvidia-smi -q` has no Remapped Rows")
    rows = {gpu.address: gpu.number("Remapped Rows/Uncorrectable Error") for gpu in machine.gpus}
    bad = [
        f"{gpu} ({'failed' if failed == 'Yes' else 'pending'})"
        for gpu, (pending, failed) in known.items()
        if "Yes" in (pending, failed)
    ]
    bad += [f"{gpu} ({count:.0f} rows)" for gpu, count in rows.items() if count is not None and count > 512]
    outcome = fail(f"row remapping on {named(bad)}") if bad else ok(f"none on {len(known)} GPUs")
    return with_missing(outcome, len(found) - len(known), "GPUs did not say")


@check(
    "gpu-row-remap-banks",
    "gpu",
    title="each bank of memory has rows left to remap to",
    read="`nvidia-smi -q`: Remapped Rows, Bank Remap Availability Histogram, None and Low",
    expected="0 banks without, or with few, spare rows",
    source=_DCGM,
    cost="nothing yet: the next bad row in such a bank cannot be replaced",
    fix="plan to have the GPU replaced",
    when_wrong="never seen to be",
)
def row_remap_banks(machine: Machine) -> CheckOutcome:
    def left(gpu: SmiGpu) -> float | None:
        empty, low = (gpu.number(f"Bank Remap Availability Histogram/{name}") for name in ("None", "Low"))
        return None if empty is None and low is None else (empty or 0) + (low or 0)

    values, missing = _each(machine, left, "histogram of banks")
    bad = [f"{gpu}: {count:.0f} banks" for gpu, count in values.items() if count]
    outcome = warn(f"few spare rows on {named(bad)}") if bad else ok(f"every bank of {len(values)} GPUs has spare rows")
    return with_missing(outcome, missing, "GPUs did not say")


@check(
    "gpu-retired-pages",
    "gpu",
    title="few pages are retired, and none is pending",
    read="`nvidia-smi -q`: Retired Pages, single bit, double bit and pending",
    expected="none pending, and fewer than 60 in all (the vendor's limit for return); more than 10 is worth a look",
    source="NVIDIA Dynamic Page Retirement, https://docs.nvidia.com/deploy/dynamic-page-retirement/",
    cost="a pending page is still in use: the next access may end the job",
    fix="pending: reset the GPU; 60 or more: return it",
    when_wrong="Ampere and newer remap rows instead, and say N/A here",
)
def retired_pages(machine: Machine) -> CheckOutcome:
    pages: dict[str, int] = {}
    pending = []
    for gpu in machine.gpus:
        single, double = gpu.number("Retired Pages/Single Bit ECC"), gpu.number("Retired Pages/Double Bit ECC")
        if single is None and double is None:
            continue
        pages[gpu.address] = int((single or 0) + (double or 0))
        if gpu.text("Pending Page Blacklist", "Retired Pages/Pending") == "Yes":
            pending.append(gpu.address)
    if not pages:
        if any(gpu.section("Remapped Rows") for gpu in machine.gpus):
            return info("these GPUs remap rows instead of retiring pages")
        raise NotReadError("`nvidia-smi -q` has no Retired Pages")
    missing = len(machine.gpus) - len(pages)
    over = [f"{gpu}: {count}" for gpu, count in pages.items() if count >= 60]
    many = [f"{gpu}: {count}" for gpu, count in pages.items() if 10 < count < 60]
    if pending or over:
        parts = [f"pending on {named(pending)}"] if pending else []
        parts += [f"60 or more on {named(over)}"] if over else []
        parts += [f"more than 10 on {named(many)}"] if many else []
        return fail("retired pages: " + "; ".join(parts))
    if many:
        return warn(f"many retired pages: {named(many)}")
    return with_missing(ok(f"at most {max(pages.values())}, none pending"), missing, "GPUs did not say")


@check(
    "gpu-memory-free",
    "gpu",
    title="no other process holds memory of a GPU",
    read="`nvidia-smi -q`: FB Memory Usage, Used, and Processes",
    expected="no more than an idle driver keeps before the job starts: 700 MiB, or 3 % on large GPUs",
    source="proposal of this project, uncalibrated; checkers that allow 15 MiB count the driver's own on newer GPUs",
    cost="less memory for the job, and a GPU that is shared: that rank is late in every step",
    fix="end what was left behind by an earlier job, or ask who else uses the node",
    when_wrong="run while the job runs, it finds the job itself",
)
def memory_free(machine: Machine) -> CheckOutcome:
    used, missing = _each(machine, lambda gpu: gpu.number("FB Memory Usage/Used"), "memory in use")
    total = {gpu.address: gpu.number("FB Memory Usage/Total") for gpu in machine.gpus}
    # An idle driver keeps up to about 3 % of the memory on large GPUs.
    bad = [f"{gpu}: {mib:,.0f} MiB" for gpu, mib in used.items() if mib > max(700, 0.03 * (total[gpu] or 0))]
    outcome = warn(f"in use already: {named(bad)}") if bad else ok(f"at most {max(used.values()):,.0f} MiB in use")
    return with_missing(outcome, missing, "GPUs did not say")
