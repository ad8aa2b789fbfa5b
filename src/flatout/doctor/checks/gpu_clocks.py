"""Clocks, power and temperature of the GPUs."""

from __future__ import annotations

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.peers import MIN_PEERS, minority, outliers
from flatout.doctor.unknown import NotReadError

_NVML = "NVIDIA NVML API reference, clocks event reasons, https://docs.nvidia.com/deploy/nvml-api/"


def _active(machine: Machine, *names: str) -> tuple[list[str], int]:
    """GPUs for which a reason is active, and how many did not say. Older drivers write `Clocks Throttle Reasons`."""
    active, missing = [], 0
    for gpu in machine.gpus:
        reasons = gpu.section("Clocks Event Reasons") or gpu.section("Clocks Throttle Reasons")
        said = [value for name in names for path, value in reasons.items() if path.endswith(name)]
        if not said:
            missing += 1
        elif "Active" in said:
            active.append(gpu.address)
    if missing == len(machine.gpus):
        raise NotReadError("`nvidia-smi -q` gives no reasons for the clocks")
    return active, missing


def _idle(machine: Machine) -> int:
    """GPUs that were idle, or did not say: nothing holds an idle GPU back."""
    busy = [gpu.number("Utilization/GPU", "Utilization/Gpu") for gpu in machine.gpus]
    return sum(percent is None or percent < 10 for percent in busy)


def _none_active(machine: Machine) -> CheckOutcome:
    if idle := _idle(machine):
        return info(f"active on none, but {idle} of {len(machine.gpus)} GPUs were idle when this was read")
    return ok("active on none")


@check(
    "gpu-hardware-slowdown",
    "gpu",
    title="the hardware holds no GPU back",
    read="`nvidia-smi -q`: Clocks Event Reasons, HW Slowdown, HW Thermal Slowdown, HW Power Brake Slowdown",
    expected="Not Active",
    source=_NVML,
    cost="clocks are halved or worse: the whole job runs at that GPU's speed",
    fix="look at cooling, power supplies and the power brake signal of the chassis",
    when_wrong="a brief slowdown at the moment of reading; read again under load",
)
def hardware_slowdown(machine: Machine) -> CheckOutcome:
    active, missing = _active(machine, "HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown")
    outcome = fail(f"active on {named(active)}") if active else _none_active(machine)
    return with_missing(outcome, missing, "GPUs did not say")


@check(
    "gpu-software-thermal",
    "gpu",
    title="the driver slows no GPU down for its temperature",
    read="`nvidia-smi -q`: Clocks Event Reasons, SW Thermal Slowdown",
    expected="Not Active",
    source=_NVML,
    cost="lower clocks on that GPU, for which all others wait",
    fix="improve the cooling: fans, filters, inlet temperature",
    when_wrong="read while the GPU is idle, it says nothing of the load",
)
def software_thermal(machine: Machine) -> CheckOutcome:
    active, missing = _active(machine, "SW Thermal Slowdown")
    outcome = warn(f"active on {named(active)}") if active else _none_active(machine)
    return with_missing(outcome, missing, "GPUs did not say")


@check(
    "gpu-power-cap",
    "gpu",
    title="whether the power limit holds GPUs back",
    read="`nvidia-smi -q`: Clocks Event Reasons, SW Power Cap",
    expected="either: large matrix products reach the limit on healthy GPUs",
    source=_NVML,
    cost="some clock, where it is active; only a difference between GPUs costs more than the design allows",
    fix="none needed, unless gpu-power-limit says that the limit was lowered",
    when_wrong="read while the GPU is idle, it says nothing of the load",
)
def power_cap(machine: Machine) -> CheckOutcome:
    active, _ = _active(machine, "SW Power Cap")
    return info(f"active on {named(active)}" if active else "active on none at the moment of reading")


@check(
    "gpu-power-limit",
    "gpu",
    title="each GPU may use the power that it is made for",
    read="`nvidia-smi -q`: Power Readings, Current (or Enforced) and Default Power Limit",
    expected="enforced limit = default limit, alike on all GPUs",
    source="vendor: the default limit in the GPU's own firmware",
    cost="clocks fall with the limit; one lower GPU holds all ranks back",
    fix="an administrator raises it: `nvidia-smi -pl WATTS`",
    when_wrong="a site caps the power on purpose: then alike on all GPUs is right",
)
def power_limit(machine: Machine) -> CheckOutcome:
    limits, defaults = {}, {}
    for gpu in machine.gpus:
        limit = gpu.number("Enforced Power Limit", "Current Power Limit", "Power Limit")
        default = gpu.number("Default Power Limit")
        if limit is not None and default is not None:
            limits[gpu.address], defaults[gpu.address] = limit, default
    need(list(limits), "`nvidia-smi -q` gives no power limits")
    low = {gpu: limit for gpu, limit in limits.items() if limit < defaults[gpu] - 1}
    missing = len(machine.gpus) - len(limits)
    if not low:
        return with_missing(ok(f"{max(limits.values()):.0f} W, the default"), missing, "GPUs did not say")
    shown = named(f"{gpu}: {limit:.0f} of {defaults[gpu]:.0f} W" for gpu, limit in low.items())
    if len(low) < len(limits):
        return fail(f"lowered on some GPUs only: {shown}")
    return warn(f"lowered: {shown}")


@check(
    "gpu-clock-peers",
    "gpu",
    title="under load, all GPUs run at about the same clock",
    read="`nvidia-smi -q`: Clocks, SM, of GPUs that are at least 10 % busy",
    expected="within 5 % of the median of the GPUs of this host, and within 5 robust spreads",
    source="proposal of this project; how often it is wrong: how-to, Check a machine",
    cost="every synchronous step waits for the slowest GPU",
    fix="compare its power, temperature and slowdown reasons with the others'",
    when_wrong="the GPUs do different work at that moment",
)
def clock_peers(machine: Machine) -> CheckOutcome:
    clocks = {
        gpu.address: clock
        for gpu in machine.gpus
        if machine.is_loaded(gpu) and (clock := gpu.number("Clocks/SM")) is not None
    }
    if len(clocks) < MIN_PEERS:
        raise NotReadError(
            f"{len(clocks)} GPUs were busy when this was read, and fewer than {MIN_PEERS} cannot be compared"
        )
    slow = {gpu: by for gpu, by in outliers(clocks, share=0.05).items() if by < 0}
    if slow:
        return warn(f"slower than the others: {named(f'{gpu}: {by:.0%}' for gpu, by in slow.items())}")
    return ok(f"{min(clocks.values()):.0f} to {max(clocks.values()):.0f} MHz on {len(clocks)} busy GPUs")


@check(
    "gpu-application-clocks",
    "gpu",
    title="no GPU is held at a lower clock by a setting",
    read="`nvidia-smi -q`: Applications Clocks, Graphics, against Default Applications Clocks and Max Clocks",
    expected="the default, alike on all GPUs",
    source=_NVML,
    cost="the clock that is missing, in all compute-bound work",
    fix="an administrator resets them: `nvidia-smi -rac` and `nvidia-smi -rgc`",
    when_wrong="clocks are locked on purpose to make measurements repeatable",
)
def application_clocks(machine: Machine) -> CheckOutcome:
    clocks = {}
    for gpu in machine.gpus:
        now, default = gpu.number("Applications Clocks/Graphics"), gpu.number("Default Applications Clocks/Graphics")
        if now is not None and default is not None:
            clocks[gpu.address] = (now, default)
    need(list(clocks), "`nvidia-smi -q` gives no application clocks (newer drivers have none)")
    changed = [f"{gpu}: {now:.0f} of {default:.0f} MHz" for gpu, (now, default) in clocks.items() if now < default]
    if changed:
        return (warn if len(changed) < len(clocks) else info)(f"below the default: {named(changed)}")
    missing = len(machine.gpus) - len(clocks)
    return with_missing(ok(f"the default on {len(clocks)} GPUs"), missing, "GPUs did not say")


@check(
    "gpu-temperature",
    "gpu",
    title="each GPU is well below the temperature at which it slows down",
    read="`nvidia-smi -q`: Temperature, GPU Current Temp, GPU T.Limit or GPU Slowdown Temp",
    expected="a margin of at least 5 C",
    source="vendor: the thresholds in the GPU's own firmware; the margin is a proposal of this project",
    cost="nothing yet: clocks fall when the margin is used up",
    fix="improve the cooling: fans, filters, inlet temperature",
    when_wrong="read while the GPU is idle, it says nothing of the load",
)
def temperature(machine: Machine) -> CheckOutcome:
    margins = {}
    idle = 0
    for gpu in machine.gpus:
        now = gpu.number("GPU Current Temp")
        slowdown = gpu.number("GPU Slowdown Temp", "GPU Shutdown Temp")
        margin = gpu.number("GPU T.Limit Temp")
        if margin is None and now is not None and slowdown is not None:
            margin = slowdown - now
        if margin is not None:
            margins[gpu.address] = margin
            busy = gpu.number("Utilization/GPU", "Utilization/Gpu")
            idle += busy is None or busy < 10
    need(list(margins), "`nvidia-smi -q` gives no temperature with its limit")
    near = [f"{gpu}: {margin:.0f} C left" for gpu, margin in margins.items() if margin < 5]
    if near:
        return warn(f"close to slowing down: {named(near)}")
    least = f"at least {min(margins.values()):.0f} C below it"
    if idle:
        return info(f"{least}, but {idle} of {len(margins)} GPUs were idle when this was read")
    return with_missing(ok(least), len(machine.gpus) - len(margins), "GPUs did not say")


@check(
    "gpu-temperature-peers",
    "gpu",
    title="under load, no GPU is much hotter than the others",
    read="`nvidia-smi -q`: Temperature, GPU Current Temp, of GPUs that are at least 10 % busy",
    expected="within 25 % of the median of this host, and within 5 robust spreads",
    source="proposal of this project; how often it is wrong: how-to, Check a machine",
    cost="nothing yet: a GPU that is cooled worse is the first to slow down",
    fix="look at its heat sink, its fans and its place in the air flow",
    when_wrong="the GPUs do different work at that moment, or sit in two rows of the air flow",
)
def temperature_peers(machine: Machine) -> CheckOutcome:
    found = {
        gpu.address: value
        for gpu in machine.gpus
        if machine.is_loaded(gpu) and (value := gpu.number("GPU Current Temp")) is not None
    }
    if len(found) < MIN_PEERS:
        raise NotReadError(
            f"{len(found)} GPUs were busy when this was read, and fewer than {MIN_PEERS} cannot be compared"
        )
    hot = {gpu: by for gpu, by in outliers(found, share=0.25).items() if by > 0}
    if hot:
        return warn(f"hotter than the others: {named(f'{gpu}: {by:+.0%}' for gpu, by in hot.items())}")
    return ok(f"{min(found.values()):.0f} to {max(found.values()):.0f} C on {len(found)} busy GPUs")


@check(
    "gpu-same-model",
    "gpu",
    title="all GPUs of the host are alike",
    read="`nvidia-smi -q`: Product Name, VBIOS Version and FB Memory Usage, Total",
    expected="one model, one firmware, one size of memory",
    source="proposal of this project",
    cost="a synchronous job runs at the speed, and within the memory, of the least GPU",
    fix="leave the odd GPU out with CUDA_VISIBLE_DEVICES, or have its firmware brought to the others'",
    when_wrong="boards of one model may be delivered with several firmwares that perform alike",
)
def same_model(machine: Machine) -> CheckOutcome:
    if len(machine.gpus) < 2:
        return info("there is one GPU")
    models = {gpu.address: (gpu.text("Product Name"), gpu.text("FB Memory Usage/Total")) for gpu in machine.gpus}
    if None in (name for name, _ in models.values()):
        raise NotReadError("`nvidia-smi -q` does not name every GPU")
    if len(set(models.values())) > 1:
        odd = minority(models)
        which = f"{named(odd[1])} unlike the others" if odd else named(f"{g}: {n}" for g, (n, _) in models.items())
        return warn(f"several models: {which}")
    firmware = {gpu.address: gpu.text("VBIOS Version") for gpu in machine.gpus}
    if len(set(firmware.values())) > 1:
        return info(f"one model, several firmwares: {named(sorted({str(value) for value in firmware.values()}))}")
    return ok(f"{len(models)} x {next(iter(models.values()))[0]}")
