"""Checks of the GPUs' clocks, power and temperature."""

from __future__ import annotations

from flatout.doctor.check import check, fail, info, named, ok, warn
from flatout.doctor.gpu_values import GpuValues, gpu_values
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.nvidia_smi import SmiGpu
from flatout.doctor.peers import MIN_PEERS, minority, outliers
from flatout.doctor.unknown import NotReadError

_NVML = "NVIDIA NVML API reference, clocks event reasons, https://docs.nvidia.com/deploy/nvml-api/"


def _is_active(machine: Machine, *reasons: str) -> GpuValues[bool]:
    """Whether any of the reasons for lower clocks is active on each GPU."""
    return gpu_values(
        machine, lambda gpu: _is_reason_active(gpu, reasons), "`nvidia-smi -q` does not report clock event reasons"
    )


def _is_reason_active(gpu: SmiGpu, reasons: tuple[str, ...]) -> bool | None:
    """Whether any of these reasons is active; None if the GPU reports none of them.

    Older drivers write `Clocks Throttle Reasons`.
    """
    section = gpu.section("Clocks Event Reasons") or gpu.section("Clocks Throttle Reasons")
    values = [value for path, value in section.items() if path.endswith(reasons)]
    return "Active" in values if values else None


def _throttled(is_active: GpuValues[bool]) -> str:
    """Name the throttled GPUs; empty if no GPU is throttled."""
    return named(gpu for gpu, is_throttled in is_active.items() if is_throttled)


def _not_throttled(machine: Machine) -> CheckOutcome:
    """Report that no GPU is throttled: `ok` only if all were busy, because an idle GPU is never throttled."""
    num_idle = sum(map(_is_idle, machine.gpus))
    if num_idle:
        return info(f"not active on any GPU, but {num_idle} of {len(machine.gpus)} GPUs were idle when this was read")
    return ok("active on no GPU")


def _is_idle(gpu: SmiGpu) -> bool:
    """Whether the GPU was idle, or does not report its utilization."""
    busy_percent = gpu.number("Utilization/GPU", "Utilization/Gpu")
    return busy_percent is None or busy_percent < 10


def _under_load(machine: Machine, *endings: str) -> dict[str, float]:
    """Read a number from each busy GPU. Raises NotReadError if too few were busy to compare them."""
    values = {}
    for gpu in machine.gpus:
        if not machine.is_loaded(gpu):
            continue
        value = gpu.number(*endings)
        if value is not None:
            values[gpu.address] = value
    if len(values) < MIN_PEERS:
        raise NotReadError(
            f"{len(values)} GPUs were busy when this was read, and fewer than {MIN_PEERS} cannot be compared"
        )
    return values


@check(
    "gpu-hardware-slowdown",
    "gpu",
    topic="GPU hardware throttling",
    read="`nvidia-smi -q`: Clocks Event Reasons, HW Slowdown, HW Thermal Slowdown, HW Power Brake Slowdown",
    expected="Not Active",
    source=_NVML,
    cost="clocks drop to half or less, and the whole job runs at that GPU's speed",
    fix="check cooling, power supplies and the power brake signal of the chassis",
    when_wrong="the slowdown was brief; read again under load",
)
def hardware_slowdown(machine: Machine) -> CheckOutcome:
    is_active = _is_active(machine, "HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown")
    if throttled := _throttled(is_active):
        return is_active.judged(fail(f"the hardware throttles {throttled}"))
    return is_active.judged(_not_throttled(machine))


@check(
    "gpu-software-thermal",
    "gpu",
    topic="GPU thermal throttling by the driver",
    read="`nvidia-smi -q`: Clocks Event Reasons, SW Thermal Slowdown",
    expected="Not Active",
    source=_NVML,
    cost="that GPU's clocks are lower, and all other GPUs wait for it",
    fix="improve the cooling: fans, filters, inlet temperature",
    when_wrong="a reading from an idle GPU says nothing about it under load",
)
def software_thermal(machine: Machine) -> CheckOutcome:
    is_active = _is_active(machine, "SW Thermal Slowdown")
    if throttled := _throttled(is_active):
        return is_active.judged(warn(f"the driver throttles {throttled}, which is too hot"))
    return is_active.judged(_not_throttled(machine))


@check(
    "gpu-power-cap",
    "gpu",
    topic="GPU power capping",
    read="`nvidia-smi -q`: Clocks Event Reasons, SW Power Cap",
    expected="any: large matrix multiplications reach the limit on healthy GPUs",
    source=_NVML,
    cost="clocks are slightly lower while active, as designed; only a difference between GPUs costs more",
    fix="none needed, unless gpu-power-limit reports a lowered limit",
    when_wrong="a reading from an idle GPU says nothing about it under load",
)
def power_cap(machine: Machine) -> CheckOutcome:
    if capped := _throttled(_is_active(machine, "SW Power Cap")):
        return info(f"active on {capped}")
    return info("not active on any GPU when this was read")


@check(
    "gpu-power-limit",
    "gpu",
    topic="GPU power limit",
    read="`nvidia-smi -q`: Power Readings, Current (or Enforced) and Default Power Limit",
    expected="enforced limit = default limit, the same on all GPUs",
    source="vendor: the default limit in the GPU's own firmware",
    cost="clocks fall with the limit; one lower GPU slows all ranks",
    fix="ask an administrator to raise it: `nvidia-smi -pl WATTS`",
    when_wrong="the site caps the power deliberately: then all GPUs should have the same limit",
)
def power_limit(machine: Machine) -> CheckOutcome:
    limits = gpu_values(machine, _limit_and_default, "`nvidia-smi -q` reports no power limits")
    lowered = [
        f"{gpu}: {limit:.0f} of {default:.0f} W" for gpu, (limit, default) in limits.items() if limit < default - 1
    ]
    if not lowered:
        highest = max(limit for limit, _ in limits.values())
        return limits.judged(ok(f"{highest:.0f} W, the default"))
    if len(lowered) < len(limits):
        return fail(f"the power limit is lowered on some GPUs only: {named(lowered)}")
    return warn(f"the power limit is lowered: {named(lowered)}")


def _limit_and_default(gpu: SmiGpu) -> tuple[float, float] | None:
    limit = gpu.number("Enforced Power Limit", "Current Power Limit", "Power Limit")
    default = gpu.number("Default Power Limit")
    return None if limit is None or default is None else (limit, default)


@check(
    "gpu-clock-peers",
    "gpu",
    topic="GPU clocks under load, compared",
    read="`nvidia-smi -q`: Clocks, SM, of GPUs that are at least 10 % busy",
    expected="within 5 % of the median of this host's GPUs, and within 5 robust standard deviations",
    source="proposed by Flatout; for its error rates see the how-to page Check a machine",
    cost="every synchronous step waits for the slowest GPU",
    fix="compare its power, temperature and slowdown reasons with the others'",
    when_wrong="the GPUs do different work at that moment",
)
def clock_peers(machine: Machine) -> CheckOutcome:
    clocks = _under_load(machine, "Clocks/SM")
    slow = [f"{gpu}: {excess:.0%}" for gpu, excess in outliers(clocks, share=0.05).items() if excess < 0]
    if slow:
        return warn(f"some GPUs have lower clocks than the others: {named(slow)}")
    return ok(f"{min(clocks.values()):.0f} to {max(clocks.values()):.0f} MHz on {len(clocks)} busy GPUs")


@check(
    "gpu-application-clocks",
    "gpu",
    topic="GPU application clocks",
    read="`nvidia-smi -q`: Applications Clocks, Graphics, against Default Applications Clocks and Max Clocks",
    expected="the default, the same on all GPUs",
    source=_NVML,
    cost="all compute-bound work slows down in proportion",
    fix="ask an administrator to reset them: `nvidia-smi -rac` and `nvidia-smi -rgc`",
    when_wrong="clocks are locked deliberately, to make measurements repeatable",
)
def application_clocks(machine: Machine) -> CheckOutcome:
    clocks = gpu_values(
        machine, _clock_and_default, "`nvidia-smi -q` reports no application clocks (newer drivers have none)"
    )
    lowered = [f"{gpu}: {now:.0f} of {default:.0f} MHz" for gpu, (now, default) in clocks.items() if now < default]
    if not lowered:
        return clocks.judged(ok(f"the default on {len(clocks)} GPUs"))
    reason = f"application clocks are below the default: {named(lowered)}"
    return warn(reason) if len(lowered) < len(clocks) else info(reason)


def _clock_and_default(gpu: SmiGpu) -> tuple[float, float] | None:
    now = gpu.number("Applications Clocks/Graphics")
    default = gpu.number("Default Applications Clocks/Graphics")
    return None if now is None or default is None else (now, default)


@check(
    "gpu-temperature",
    "gpu",
    topic="GPU temperature margin",
    read="`nvidia-smi -q`: Temperature, GPU Current Temp, GPU T.Limit or GPU Slowdown Temp",
    expected="at least 5 C below the temperature at which the GPU slows down",
    source="vendor: the thresholds in the GPU's own firmware; the margin is proposed by Flatout",
    cost="nothing yet: clocks fall when the margin is used up",
    fix="improve the cooling: fans, filters, inlet temperature",
    when_wrong="a reading from an idle GPU says nothing about it under load",
)
def temperature(machine: Machine) -> CheckOutcome:
    margins = gpu_values(machine, _margin_c, "`nvidia-smi -q` reports no temperature with its limit")
    near = [f"{gpu}: {margin:.0f} C left" for gpu, margin in margins.items() if margin < 5]
    if near:
        return warn(f"GPUs are almost too hot: {named(near)}")
    least = f"at least {min(margins.values()):.0f} C below the slowdown temperature"
    num_idle = sum(_is_idle(gpu) for gpu in machine.gpus if gpu.address in margins)
    if num_idle:
        return info(f"{least}, but {num_idle} of {len(margins)} GPUs were idle when this was read")
    return margins.judged(ok(least))


def _margin_c(gpu: SmiGpu) -> float | None:
    """Return by how many degrees C the GPU is below the temperature at which it throttles."""
    margin = gpu.number("GPU T.Limit Temp")
    if margin is not None:
        return margin
    now = gpu.number("GPU Current Temp")
    slowdown = gpu.number("GPU Slowdown Temp", "GPU Shutdown Temp")
    return None if now is None or slowdown is None else slowdown - now


@check(
    "gpu-temperature-peers",
    "gpu",
    topic="GPU temperatures under load, compared",
    read="`nvidia-smi -q`: Temperature, GPU Current Temp, of GPUs that are at least 10 % busy",
    expected="within 25 % of the median of this host's GPUs, and within 5 robust standard deviations",
    source="proposed by Flatout; for its error rates see the how-to page Check a machine",
    cost="nothing yet: the GPU with the worst cooling is the first to slow down",
    fix="check its heat sink, its fans and its position in the airflow",
    when_wrong="the GPUs do different work at that moment, or some are behind others in the airflow",
)
def temperature_peers(machine: Machine) -> CheckOutcome:
    temperatures = _under_load(machine, "GPU Current Temp")
    hot = [f"{gpu}: {excess:+.0%}" for gpu, excess in outliers(temperatures, share=0.25).items() if excess > 0]
    if hot:
        return warn(f"GPUs are hotter than the others: {named(hot)}")
    coolest, hottest = min(temperatures.values()), max(temperatures.values())
    return ok(f"{coolest:.0f} to {hottest:.0f} C on {len(temperatures)} busy GPUs")


@check(
    "gpu-same-model",
    "gpu",
    topic="GPU models and firmware",
    read="`nvidia-smi -q`: Product Name, VBIOS Version and FB Memory Usage, Total",
    expected="the same model, firmware and memory size on all GPUs",
    source="proposed by Flatout",
    cost="a synchronous job is limited by the slowest GPU and by the smallest memory",
    fix="exclude the different GPU with CUDA_VISIBLE_DEVICES, or install the others' firmware on it",
    when_wrong="boards of one model can ship with several firmware versions that perform alike",
)
def same_model(machine: Machine) -> CheckOutcome:
    if len(machine.gpus) < 2:
        return info("there is only one GPU")
    models = {gpu.address: (gpu.text("Product Name"), gpu.text("FB Memory Usage/Total")) for gpu in machine.gpus}
    if any(name is None for name, _ in models.values()):
        raise NotReadError("`nvidia-smi -q` does not report the model of every GPU")
    if len(set(models.values())) > 1:
        return warn(f"GPUs of several models: {_odd_models(models)}")
    firmware = sorted({str(gpu.text("VBIOS Version")) for gpu in machine.gpus})
    if len(firmware) > 1:
        return info(f"one model, several firmware versions: {named(firmware)}")
    [(model, _)] = set(models.values())
    return ok(f"{len(models)} x {model}")


def _odd_models(models: dict[str, tuple[str | None, str | None]]) -> str:
    odd = minority(models)
    if odd is None:
        return named(f"{gpu}: {name}" for gpu, (name, _) in models.items())
    _, odd_gpus = odd
    return f"{named(odd_gpus)} differ from the others"
