"""Links of the GPUs: PCIe, NVLink, and whether pairs may reach each other's memory."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.machine import SMI_NVLINK, SMI_NVLINK_ERRORS, Machine
from flatout.doctor.parse.nvidia_smi import parse_list, parse_nvlink_errors
from flatout.doctor.peers import MIN_PEERS, minority
from flatout.doctor.unknown import NotHereError, NotReadError

_SMI = "NVIDIA nvidia-smi manual, https://docs.nvidia.com/deploy/nvidia-smi/"
# Boards that NVLink is soldered to; a PCIe card of the same chip has it only with a bridge.
_SOLDERED = re.compile(r"SXM|H100 80GB HBM3|H200$|B200|B300|GB200|GB300|H20$")


@check(
    "gpu-pcie-width",
    "gpu",
    title="each GPU has all lanes of its PCIe link",
    read="`nvidia-smi -q`: GPU Link Info, Link Width, Max and Current",
    expected="current = max, 16 lanes for cards of data centres",
    source="vendor: what the GPU itself says it can",
    cost="half the lanes are half the bandwidth to the host, to NICs and, without NVLink, between GPUs",
    fix="reseat the card or its riser; look at the slot's wiring and at bifurcation in the firmware",
    when_wrong="slots of desktop boards may have 8 lanes by design; some laptops drop lanes while idle",
)
def pcie_width(machine: Machine) -> CheckOutcome:
    widths = {}
    for gpu in machine.gpus:
        now, most = gpu.number("Link Width/Current"), gpu.number("Link Width/Max")
        if now is not None and most is not None:
            widths[gpu.address] = (int(now), int(most))
    need(list(widths), "`nvidia-smi -q` gives no link width")
    narrow = {gpu: pair for gpu, pair in widths.items() if pair[0] < pair[1]}
    missing = len(machine.gpus) - len(widths)
    if not narrow:
        lanes = named(sorted({f"x{now}" for now, _ in widths.values()}))
        return with_missing(ok(f"{lanes} on {len(widths)} GPUs"), missing, "GPUs did not say")
    shown = named(f"{gpu}: x{now} of x{most}" for gpu, (now, most) in narrow.items())
    return (fail if len(narrow) < len(widths) else warn)(f"fewer lanes than the GPU has: {shown}")


@check(
    "gpu-pcie-speed",
    "gpu",
    title="under load, each GPU's PCIe link runs at its full speed",
    read="`nvidia-smi -q`: GPU Link Info, PCIe Generation, Max and Current, of GPUs that are at least 10 % busy",
    expected="current = max; an idle link is slower by design, so an idle GPU is not judged",
    source=_SMI,
    cost="each generation below is half the bandwidth to the host and to NICs",
    fix="look at risers, retimers and the slot's speed in the firmware; then at AER errors in the kernel log",
    when_wrong="a GPU that computes but copies nothing may leave its link slow",
)
def pcie_speed(machine: Machine) -> CheckOutcome:
    speeds = {}
    num_idle = 0
    for gpu in machine.gpus:
        now, most = gpu.number("PCIe Generation/Current"), gpu.number("PCIe Generation/Max")
        if now is None or most is None:
            continue
        if now < most and not machine.is_loaded(gpu):
            num_idle += 1
        else:
            speeds[gpu.address] = (int(now), int(most))
    slow = [f"{gpu}: generation {now} of {most}" for gpu, (now, most) in speeds.items() if now < most]
    if slow:
        return fail(f"slow under load: {named(slow)}")
    if num_idle:
        raise NotReadError(
            f"{num_idle} of {len(machine.gpus)} GPUs were idle, and an idle link is slow by design; read under load"
        )
    need(list(speeds), "`nvidia-smi -q` gives no PCIe generation")
    at = named(sorted({f"generation {now}" for now, _ in speeds.values()}))
    return with_missing(ok(f"{at} on {len(speeds)} GPUs"), len(machine.gpus) - len(speeds), "GPUs did not say")


@check(
    "gpu-pcie-replay",
    "gpu",
    title="packets on the PCIe links of GPUs need not be sent again",
    read="`nvidia-smi -q`: PCI, Replays Since Reset and Replay Number Rollovers",
    expected="no rollover; a few replays since the reset are normal",
    source=_SMI,
    cost="each replay delays a copy; a rollover makes the link train again",
    fix="reseat the card or riser; compare with the other GPUs under load",
    when_wrong="counts are since the last reset and may be of its start-up; growth under load is what matters",
)
def pcie_replay(machine: Machine) -> CheckOutcome:
    replays, rollovers = {}, {}
    for gpu in machine.gpus:
        if (count := gpu.number("Replays Since Reset")) is not None:
            replays[gpu.address] = count
        if (count := gpu.number("Replay Number Rollovers")) is not None:
            rollovers[gpu.address] = count
    need(list(replays), "`nvidia-smi -q` gives no replays")
    rolled = [f"{gpu}: {count:.0f}" for gpu, count in rollovers.items() if count]
    if rolled:
        return warn(f"replay rollovers: {named(rolled)}")
    some = [f"{gpu}: {count:.0f}" for gpu, count in replays.items() if count]
    outcome = info(f"replays since the reset: {named(some)}") if some else ok(f"0 on {len(replays)} GPUs")
    return with_missing(outcome, len(machine.gpus) - len(replays), "GPUs did not say")


@check(
    "gpu-nvlink-active",
    "gpu",
    title="every NVLink of every GPU is up",
    read="`nvidia-smi nvlink -s`: links with a speed against `<inactive>`",
    expected="as many active links as the other GPUs of the host have",
    source="peers; NVIDIA GPU Debug Guidelines, https://docs.nvidia.com/deploy/gpu-debug-guidelines/",
    cost="the bandwidth of each link that is missing, for all collectives: rings are as fast as their slowest GPU",
    fix="reset the GPUs of the board together; if it stays, look at SXid and at the bridge or baseboard",
    when_wrong="on boards where some links are not wired by design, all GPUs are alike, which is info",
)
def nvlink_active(machine: Machine) -> CheckOutcome:
    links = machine.nvlinks
    if not any(speed is not None for gpu in links.values() for speed in gpu.values()):
        names = [name for name, _ in parse_list(machine.output(SMI_NVLINK)).values()]
        if any(_SOLDERED.search(name) for name in names):
            return fail(f"no NVLink is active on {len(links)} GPUs of a model that has it")
        raise NotHereError(f"no NVLink is active on any of {len(links)} GPUs: they have none, or none is connected")
    active = {gpu: sum(speed is not None for speed in found.values()) for gpu, found in links.items()}
    if len(links) == 1:
        gpu, found = next(iter(links.items()))
        if None in found.values():
            return info(
                f"GPU {gpu} has {active[gpu]} of {len(found)} links active, and there is no other to compare with"
            )
        return info(f"GPU {gpu} has {active[gpu]} links active, and there is no other to compare with")
    most = max(active.values())
    fewer = {gpu: count for gpu, count in active.items() if count < most}
    last = next(reversed(links))
    is_told = None in links[last].values() or "inactive" in machine.output(SMI_NVLINK).splitlines()[-1].lower()
    if last in fewer and not is_told:
        # Links that are missing at the end of the text, rather than inactive: it may be cut off.
        del fewer[last]
        if not fewer:
            raise NotReadError(f"the text ends after {active[last]} links of GPU {last}, of {most}")
    if fewer:
        return fail(f"fewer links than the {most} of the others: {named(f'GPU {g}: {n}' for g, n in fewer.items())}")
    if any(None in found.values() for found in links.values()):
        return info(f"{most} links on each of {len(links)} GPUs, and others inactive on all alike")
    return ok(f"{most} links on each of {len(links)} GPUs")


@check(
    "gpu-nvlink-speed",
    "gpu",
    title="all NVLinks run at the same speed",
    read="`nvidia-smi nvlink -s`: speed of each active link",
    expected="one speed",
    source="peers",
    cost="collectives run at the speed of the slowest link",
    fix="reset the GPUs of the board together",
    when_wrong="boards that join two kinds of links by design",
)
def nvlink_speed(machine: Machine) -> CheckOutcome:
    speeds = {
        (gpu, link): speed
        for gpu, found in machine.nvlinks.items()
        for link, speed in found.items()
        if speed is not None
    }
    if not speeds:
        raise NotHereError("no NVLink is active")
    if len(set(speeds.values())) == 1:
        return ok(f"{next(iter(speeds.values())):g} GB/s on each of {len(speeds)} links")
    odd = minority(speeds)
    if odd is None:
        return info(f"several speeds: {named(f'{speed:g} GB/s' for speed in sorted(set(speeds.values())))}")
    shown = named(f"GPU {gpu} link {link}: {speeds[gpu, link]:g}" for gpu, link in odd[1])
    return warn(f"unlike the usual {odd[0]:g} GB/s: {shown}")


@check(
    "gpu-nvlink-errors",
    "gpu",
    title="the NVLinks carry data without errors",
    read="`nvidia-smi nvlink -e`: Replay, Recovery and CRC Errors, summed over the links of each GPU",
    expected="no recovery; replays and CRC errors are rare",
    source="NVIDIA GPU Debug Guidelines, https://docs.nvidia.com/deploy/gpu-debug-guidelines/",
    cost="a recovery stops the link for a moment; many end in Xid 74 and the end of the job",
    fix="reset the GPUs of the board together; if counts grow again, have the board examined",
    when_wrong="counts are since the driver was loaded; growth under load is what matters",
)
def nvlink_errors(machine: Machine) -> CheckOutcome:
    counts = parse_nvlink_errors(machine.output(SMI_NVLINK_ERRORS))
    known = {gpu: found for gpu, found in counts.items() if found}
    if counts and not known:
        raise NotHereError("no NVLink has error counters")
    need(list(known), f"`{SMI_NVLINK_ERRORS}` gives no counts")
    recovered = [f"GPU {gpu}: {found['recovery']}" for gpu, found in known.items() if found.get("recovery")]
    if recovered:
        return warn(f"recoveries: {named(recovered)}")
    some = [f"GPU {gpu}: {sum(found.values())}" for gpu, found in known.items() if sum(found.values())]
    return info(f"errors that were corrected: {named(some)}") if some else ok(f"0 on {len(known)} GPUs")


@check(
    "gpu-nvlink-matrix",
    "gpu",
    title="each GPU has as many NVLinks to the others as they have",
    read="`nvidia-smi topo -m`: NV# of each row, summed",
    expected="the same sum in every row",
    source="peers; a GPU that reads NODE or SYS among NV18 is a known defect",
    cost="traffic to that GPU goes over PCIe, at a tenth of the speed, and every ring passes through it",
    fix="look at the fabric manager and `nvidia-smi nvlink -s`; reset the GPUs of the board together",
    when_wrong="bridges between some pairs only (then it says so, as several groups)",
)
def nvlink_matrix(machine: Machine) -> CheckOutcome:
    matrix = machine.matrix
    gpus = matrix.gpus
    if len(gpus) < 2:
        return info("there is one GPU")
    sums = {}
    for gpu in gpus:
        cells = [matrix.cells.get((gpu, other)) for other in gpus if other != gpu]
        if None not in cells:
            sums[gpu] = sum(int(cell[2:]) for cell in cells if cell and cell.startswith("NV"))
    need(list(sums), "no row of the matrix is whole")
    missing = len(gpus) - len(sums)
    if not any(sums.values()) and matrix.hides_nvlink:
        raise NotReadError("the matrix has no NVLink, but its legend neither: `topo -mp` never shows any")
    if not any(sums.values()):
        return with_missing(info(f"no NVLink between {len(sums)} GPUs"), missing, "rows are not whole")
    if len(set(sums.values())) == 1:
        links = next(iter(sums.values()))
        kinds = {cell for (a, b), cell in matrix.cells.items() if a in gpus and b in gpus}
        shown = f"{kinds.pop()} between all" if len(kinds) == 1 else f"the NV# of each row sum to {links}"
        outcome = ok(f"{shown}, {len(sums)} GPUs")
        return with_missing(outcome, missing, "rows are not whole")
    odd = minority(sums)
    if odd is not None and len(sums) >= MIN_PEERS and all(sums[gpu] < odd[0] for gpu in odd[1]):
        return fail(f"fewer than the usual {odd[0]}: {named(f'{gpu}: {sums[gpu]}' for gpu in odd[1])}")
    return info(f"not alike: {named(f'{gpu}: {count}' for gpu, count in sums.items())}")


@check(
    "gpu-peer-to-peer",
    "gpu",
    title="GPUs may read each other's memory",
    read="`nvidia-smi topo -p2p r`",
    expected="OK for every pair",
    source=_SMI,
    cost="NCCL goes through memory of the host instead: about half the bandwidth or less on PCIe",
    fix="CNS: other slots, or IOMMU and ACS off on bare metal; DR: a setting of the driver; GNS: this model has none",
    when_wrong="GeForce cards have none by the vendor's decision: then nothing is broken",
)
def peer_to_peer(machine: Machine) -> CheckOutcome:
    matrix = machine.peer_to_peer
    pairs = {pair: cell for pair, cell in matrix.cells.items() if pair[0] < pair[1]}
    need(list(pairs), "the matrix names no pair")
    if not matrix.is_peer_to_peer:
        raise NotReadError("the matrix is not that of -p2p")
    bad = {pair: cell for pair, cell in pairs.items() if cell != "OK"}
    if not bad:
        return with_missing(ok(f"OK for {len(pairs)} pairs"), len(matrix.problems), "parts of the matrix are missing")
    kinds = sorted(set(bad.values()))
    shown = f"{len(bad)} of {len(pairs)} pairs: {named(kinds)} ({named(f'{a} to {b}' for a, b in bad)})"
    if kinds == ["U"]:
        raise NotReadError(f"the driver does not know for {shown}")
    return (info if set(kinds) <= {"GNS", "NS"} else warn)(shown)
