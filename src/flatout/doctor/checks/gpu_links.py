"""Checks of the GPUs' links: PCIe, NVLink, and access to each other's memory."""

from __future__ import annotations

import re

from flatout.doctor.check import check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.gpu_values import gpu_values
from flatout.doctor.machine import SMI_NVLINK, SMI_NVLINK_ERRORS, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.nvidia_smi import SmiGpu, parse_list, parse_nvlink_errors
from flatout.doctor.parse.topology_matrix import TopologyMatrix
from flatout.doctor.peers import MIN_PEERS, minority
from flatout.doctor.unknown import NotHereError, NotReadError

_SMI = "NVIDIA nvidia-smi manual, https://docs.nvidia.com/deploy/nvidia-smi/"
# Boards with built-in NVLink; a PCIe card with the same chip has NVLink only with a bridge.
_SOLDERED = re.compile(r"SXM|H100 80GB HBM3|H200$|B200|B300|GB200|GB300|H20$")


@check(
    "gpu-pcie-width",
    "gpu",
    topic="PCIe link width of the GPUs",
    read="`nvidia-smi -q`: GPU Link Info, Link Width, Max and Current",
    expected="current = max, 16 lanes for data-centre cards",
    source="vendor: the maximum that the GPU itself reports",
    cost="half the lanes mean half the bandwidth to the host, to NICs and, without NVLink, between GPUs",
    fix="reseat the card or its riser; check the slot's wiring, and bifurcation in the firmware",
    when_wrong="slots of desktop boards can have 8 lanes by design; some laptops drop lanes while idle",
    traffic="pcie",
)
def pcie_width(machine: Machine) -> CheckOutcome:
    widths = gpu_values(
        machine, lambda gpu: _current_and_max(gpu, "Link Width"), "`nvidia-smi -q` reports no link width"
    )
    narrow = [f"{gpu}: x{now} of x{most}" for gpu, (now, most) in widths.items() if now < most]
    if not narrow:
        lanes = sorted({f"x{now}" for now, _ in widths.values()})
        return widths.judged(ok(f"{named(lanes)} on {len(widths)} GPUs"))
    reason = f"fewer lanes than the GPU supports: {named(narrow)}"
    share = min(now / most for now, most in widths.values())
    outcome = fail if len(narrow) < len(widths) else warn
    return outcome(reason, bandwidth_share=share)


def _current_and_max(gpu: SmiGpu, property_name: str) -> tuple[int, int] | None:
    now = gpu.number(f"{property_name}/Current")
    most = gpu.number(f"{property_name}/Max")
    if now is None or most is None:
        return None
    return int(now), int(most)


@check(
    "gpu-pcie-speed",
    "gpu",
    topic="PCIe link speed of the GPUs under load",
    read="`nvidia-smi -q`: GPU Link Info, PCIe Generation, Max and Current, of GPUs that are at least 10 % busy",
    expected="current = max; an idle link is slower by design, so an idle GPU is not judged",
    source=_SMI,
    cost="each generation lower halves the bandwidth to the host and to NICs",
    fix="check risers, retimers and the slot's speed in the firmware; then AER errors in the kernel log",
    when_wrong="a GPU that computes without copying can leave its link slow",
    traffic="pcie",
)
def pcie_speed(machine: Machine) -> CheckOutcome:
    speeds = {}
    num_idle = 0
    for gpu in machine.gpus:
        generations = _current_and_max(gpu, "PCIe Generation")
        if generations is None:
            continue
        now, most = generations
        if now < most and not machine.is_loaded(gpu):
            num_idle += 1
        else:
            speeds[gpu.address] = generations
    slow = [f"{gpu}: generation {now} of {most}" for gpu, (now, most) in speeds.items() if now < most]
    if slow:
        share = min(2.0 ** (now - most) for now, most in speeds.values())  # each generation doubles the rate
        return fail(f"PCIe links of GPUs are slow under load: {named(slow)}", bandwidth_share=share)
    if num_idle:
        raise NotReadError(
            f"{num_idle} of {len(machine.gpus)} GPUs were idle, and an idle link is slow by design; read under load"
        )
    need(list(speeds), "`nvidia-smi -q` reports no PCIe generation")
    shown = named(sorted({f"generation {now}" for now, _ in speeds.values()}))
    num_missing = len(machine.gpus) - len(speeds)
    return with_missing(ok(f"{shown} on {len(speeds)} GPUs"), num_missing, "GPUs reported no value")


@check(
    "gpu-pcie-replay",
    "gpu",
    topic="PCIe replays",
    read="`nvidia-smi -q`: PCI, Replays Since Reset and Replay Number Rollovers",
    expected="no rollover; a few replays since the reset are normal",
    source=_SMI,
    cost="each replay delays a copy; a rollover retrains the link",
    fix="reseat the card or riser; compare with the other GPUs under load",
    when_wrong="the count starts at the last reset and can date from start-up; only growth under load matters",
    traffic="pcie",
)
def pcie_replay(machine: Machine) -> CheckOutcome:
    replays = gpu_values(machine, lambda gpu: gpu.number("Replays Since Reset"), "`nvidia-smi -q` reports no replays")
    rollovers = {gpu.address: gpu.number("Replay Number Rollovers") for gpu in machine.gpus}
    rolled = [f"{gpu}: {count:.0f}" for gpu, count in rollovers.items() if count]
    if rolled:
        return warn(f"PCIe replay rollovers: {named(rolled)}")
    replayed = [f"{gpu}: {count:.0f}" for gpu, count in replays.items() if count]
    if replayed:
        return replays.judged(info(f"replays since the reset: {named(replayed)}"))
    return replays.judged(ok(f"0 on {len(replays)} GPUs"))


@check(
    "gpu-nvlink-active",
    "gpu",
    topic="active NVLinks",
    read="`nvidia-smi nvlink -s`: links with a speed, compared with links marked `<inactive>`",
    expected="as many active links as on the host's other GPUs",
    source="peers; NVIDIA GPU Debug Guidelines, https://docs.nvidia.com/deploy/gpu-debug-guidelines/",
    cost="all collectives lose the bandwidth of each missing link: a ring is as fast as its slowest GPU",
    fix="reset the GPUs of the board together; if that does not help, check SXids and the bridge or baseboard",
    when_wrong="if some links are left unwired by design, all GPUs are alike, and the status is info",
    traffic="gpus",
)
def nvlink_active(machine: Machine) -> CheckOutcome:
    links = machine.nvlinks
    num_active = {gpu: sum(speed is not None for speed in speeds.values()) for gpu, speeds in links.items()}
    if not any(num_active.values()):
        return _no_active_nvlink(machine)
    if len(links) == 1:
        return info(_one_gpu_with_nvlinks(links))
    most = max(num_active.values())
    fewer = {gpu: count for gpu, count in num_active.items() if count < most}
    last_gpu = next(reversed(links))
    if last_gpu in fewer and _may_be_truncated(machine):
        count = fewer.pop(last_gpu)
        if not fewer:
            raise NotReadError(f"the output ends after {count} links of GPU {last_gpu}, of {most}")
    if fewer:
        shown = named(f"GPU {gpu}: {count}" for gpu, count in fewer.items())
        reason = f"fewer active NVLinks than the {most} of the other GPUs: {shown}"
        return fail(reason, bandwidth_share=min(fewer.values()) / most)
    shown = f"{most} links on each of {len(links)} GPUs"
    if any(None in speeds.values() for speeds in links.values()):
        return info(f"{shown}; every GPU also has inactive links")
    return ok(shown)


def _no_active_nvlink(machine: Machine) -> CheckOutcome:
    num_gpus = len(machine.nvlinks)
    names = [name for name, _ in parse_list(machine.output(SMI_NVLINK)).values()]
    if any(_SOLDERED.search(name) for name in names):
        return fail(f"no NVLink is active on {num_gpus} GPUs of a model that has it")
    raise NotHereError(f"no NVLink is active on any of {num_gpus} GPUs: they have no NVLink, or it is not connected")


def _one_gpu_with_nvlinks(links: dict[int, dict[int, float | None]]) -> str:
    [(gpu, speeds)] = links.items()
    num_active = sum(speed is not None for speed in speeds.values())
    of_all = f" of {len(speeds)}" if num_active < len(speeds) else ""
    return f"GPU {gpu} has {num_active}{of_all} links active, with no other GPU to compare with"


def _may_be_truncated(machine: Machine) -> bool:
    """Whether the last GPU may have more links: links beyond the end of the text are absent rather than inactive."""
    *_, speeds = machine.nvlinks.values()
    last_line = machine.output(SMI_NVLINK).splitlines()[-1]
    return None not in speeds.values() and "inactive" not in last_line.lower()


@check(
    "gpu-nvlink-speed",
    "gpu",
    topic="NVLink speed",
    read="`nvidia-smi nvlink -s`: speed of each active link",
    expected="one speed",
    source="peers",
    cost="collectives run at the speed of the slowest link",
    fix="reset the GPUs of the board together",
    when_wrong="boards that combine two kinds of links by design",
    traffic="gpus",
)
def nvlink_speed(machine: Machine) -> CheckOutcome:
    speeds: dict[tuple[int, int], float] = {}
    for gpu, links in machine.nvlinks.items():
        speeds |= {(gpu, link): speed for link, speed in links.items() if speed is not None}
    if not speeds:
        raise NotHereError("no NVLink is active")
    distinct = sorted(set(speeds.values()))
    if len(distinct) == 1:
        return ok(f"{distinct[0]:g} GB/s on each of {len(speeds)} links")
    odd = minority(speeds)
    if odd is None:
        return info(f"several speeds: {named(f'{speed:g} GB/s' for speed in distinct)}")
    usual, odd_links = odd
    shown = named(f"GPU {gpu} link {link}: {speeds[gpu, link]:g}" for gpu, link in odd_links)
    share = min(1.0, min(speeds[link] for link in odd_links) / usual)
    return warn(f"NVLinks with a speed other than the usual {usual:g} GB/s: {shown}", bandwidth_share=share)


@check(
    "gpu-nvlink-errors",
    "gpu",
    topic="NVLink errors",
    read="`nvidia-smi nvlink -e`: Replay, Recovery and CRC Errors, summed over the links of each GPU",
    expected="no recovery; replays and CRC errors are rare",
    source="NVIDIA GPU Debug Guidelines, https://docs.nvidia.com/deploy/gpu-debug-guidelines/",
    cost="a recovery stops the link briefly; many recoveries lead to Xid 74, which ends the job",
    fix="reset the GPUs of the board together; if the counts grow again, have the board examined",
    when_wrong="the counts start when the driver is loaded; only growth under load matters",
    traffic="gpus",
)
def nvlink_errors(machine: Machine) -> CheckOutcome:
    all_counts = parse_nvlink_errors(machine.output(SMI_NVLINK_ERRORS))
    counts = {gpu: errors for gpu, errors in all_counts.items() if errors}
    if all_counts and not counts:
        raise NotHereError("no NVLink has error counters")
    need(list(counts), f"`{SMI_NVLINK_ERRORS}` reports no counts")
    recovered = [f"GPU {gpu}: {errors['recovery']}" for gpu, errors in counts.items() if errors.get("recovery")]
    if recovered:
        return warn(f"NVLink recoveries: {named(recovered)}")
    totals = {gpu: sum(errors.values()) for gpu, errors in counts.items()}
    corrected = [f"GPU {gpu}: {total}" for gpu, total in totals.items() if total]
    if corrected:
        return info(f"corrected errors: {named(corrected)}")
    return ok(f"0 on {len(counts)} GPUs")


@check(
    "gpu-nvlink-matrix",
    "gpu",
    topic="NVLinks between GPUs",
    read="`nvidia-smi topo -m`: sum of NV# in each row",
    expected="the same sum in every row",
    source="peers; a GPU that reads NODE or SYS among NV18 is a known defect",
    cost="traffic to that GPU goes over PCIe, at a tenth of the speed, and every ring passes through it",
    fix="check the fabric manager and `nvidia-smi nvlink -s`; reset the GPUs of the board together",
    when_wrong="NVLink bridges connect only some pairs (the check then reports several groups)",
    traffic="gpus",
)
def nvlink_matrix(machine: Machine) -> CheckOutcome:
    matrix = machine.matrix
    if len(matrix.gpus) < 2:
        return info("there is only one GPU")
    sums = {gpu: num_links for gpu in matrix.gpus if (num_links := _num_links(matrix, gpu)) is not None}
    need(list(sums), "no row of the matrix is complete")
    num_missing = len(matrix.gpus) - len(sums)
    if not any(sums.values()):
        if matrix.hides_nvlink:
            raise NotReadError("neither the matrix nor its legend has NVLink: `topo -mp` never shows it")
        return with_missing(info(f"no NVLink between {len(sums)} GPUs"), num_missing, "rows are incomplete")
    if len(set(sums.values())) == 1:
        outcome = ok(f"{_equal_links(matrix, sums)}, {len(sums)} GPUs")
        return with_missing(outcome, num_missing, "rows are incomplete")
    odd = minority(sums)
    if odd is not None and len(sums) >= MIN_PEERS:
        usual, odd_gpus = odd
        if all(sums[gpu] < usual for gpu in odd_gpus):
            return fail(f"fewer NVLinks than the usual {usual}: {named(f'{gpu}: {sums[gpu]}' for gpu in odd_gpus)}")
    return info(f"different: {named(f'{gpu}: {num_links}' for gpu, num_links in sums.items())}")


def _num_links(matrix: TopologyMatrix, gpu: str) -> int | None:
    """Sum the NV# of a row; None if a cell is missing."""
    num_links = 0
    for other in matrix.gpus:
        if other == gpu:
            continue
        cell = matrix.cells.get((gpu, other))
        if cell is None:
            return None
        if cell.startswith("NV"):
            num_links += int(cell[2:])
    return num_links


def _equal_links(matrix: TopologyMatrix, sums: dict[str, int]) -> str:
    kinds = {cell for (a, b), cell in matrix.cells.items() if a in matrix.gpus and b in matrix.gpus}
    if len(kinds) == 1:
        return f"{kinds.pop()} between all"
    return f"the NV# of each row sum to {next(iter(sums.values()))}"


@check(
    "gpu-peer-to-peer",
    "gpu",
    topic="GPU peer-to-peer access",
    read="`nvidia-smi topo -p2p r`",
    expected="OK for every pair",
    source=_SMI,
    cost="NCCL copies through host memory instead, at half of PCIe's bandwidth or less",
    fix="CNS: other slots, or IOMMU and ACS off on bare metal; DR: a setting of the driver; GNS: this model has none",
    when_wrong="GeForce cards do not support it by the vendor's decision: then nothing is broken",
    traffic="gpus",
)
def peer_to_peer(machine: Machine) -> CheckOutcome:
    matrix = machine.peer_to_peer
    pairs = {(a, b): cell for (a, b), cell in matrix.cells.items() if a < b}
    need(list(pairs), "the matrix has no pair of GPUs")
    if not matrix.is_peer_to_peer:
        raise NotReadError("the matrix is not the output of -p2p")
    without = {pair: cell for pair, cell in pairs.items() if cell != "OK"}
    if not without:
        return with_missing(ok(f"OK for {len(pairs)} pairs"), len(matrix.problems), "parts of the matrix are missing")
    kinds = sorted(set(without.values()))
    named_pairs = named(f"{a} to {b}" for a, b in without)
    shown = f"{len(without)} of {len(pairs)} pairs: {named(kinds)} ({named_pairs})"
    if kinds == ["U"]:
        raise NotReadError(f"the driver reports unknown for {shown}")
    is_model_without = set(kinds) <= {"GNS", "NS"}
    return info(shown) if is_model_without else warn(f"no peer-to-peer access between {shown}")
