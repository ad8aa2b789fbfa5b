"""Reports of `flatout doctor`, typed: faulty, healthy without a topology, hostile, large."""

from __future__ import annotations

from collections.abc import Callable

from flatout.records.doctor import (
    CheckResult,
    DoctorReport,
    Family,
    PcieLink,
    Status,
    Topology,
    TopologyNode,
    TopologyPair,
)


def check(name: str, status: Status, family: Family = "gpu", reason: str = "what was found") -> CheckResult:
    return CheckResult(
        id=name,
        family=family,
        status=status,
        title="what should hold",
        read="`nvidia-smi -q`: a field",
        reason=reason,
        expected="a value",
        source="the vendor's guide",
        cost="half of the bandwidth",
        fix="run `nvidia-smi -r`",
        when_wrong="the GPU was idle",
    )


def report(checks: list[CheckResult], topology: Topology | None, host: str | None = "node-a") -> DoctorReport:
    return DoctorReport(
        host=host, taken_at="2026-11-28T10:00:00+00:00", read_from=("this machine",), checks=tuple(checks),
        topology=topology,
    )  # fmt: skip


def node(name: str, kind: str, parent: str | None, width: int = 16) -> TopologyNode:
    link = None if kind == "cpu" else PcieLink(speed_gt_per_s=32, width=width, max_width=16)
    return TopologyNode(id=name, kind=kind, name=f"{kind} of a vendor", parent=parent, link=link)  # type: ignore[arg-type]


def two_sockets() -> Topology:
    nodes, pairs = [], []
    for socket in (0, 1):
        cpu = f"NUMA {socket}"
        nodes += [node(cpu, "cpu", None), node(f"000{socket}:00:01.0", "root_port", cpu)]
        nodes.append(node(f"000{socket}:00:02.0", "root_port", cpu))  # with nothing behind it
        nodes.append(node(f"000{socket}:01:00.0", "switch", f"000{socket}:00:01.0"))
        nodes.append(node(f"000{socket}:02:00.0", "gpu", f"000{socket}:01:00.0", width=8 if socket else 16))
        nodes.append(node(f"000{socket}:03:00.0", "nic", f"000{socket}:01:00.0"))
    for a, b, relation in (("GPU0", "GPU1", "NV18"), ("GPU0", "NIC0", "PIX"), ("GPU1", "NIC0", "SYS")):
        pairs.append(TopologyPair(a=a, b=b, relation=relation))
    return Topology(sources=("sysfs",), nodes=tuple(nodes), pairs=tuple(pairs), problems=("one bridge is missing",))


def faulty() -> DoctorReport:
    return report(
        [
            check("gpu-row-remap", "warn", reason="rows are pending on 0001:02:00.0"),
            check("gpu-pcie-width", "fail", reason="0001:02:00.0: x8 of x16"),
            check("governor", "ok", "host"),
            check("kernel-log", "unknown", "host", reason="`dmesg`: operation not permitted"),
            check("memory-errors", "unknown", "host", reason="`dmesg`: operation not permitted"),
            check("mtu", "info", "network"),
        ],
        two_sockets(),
    )


def healthy() -> DoctorReport:
    return report([check("governor", "ok", "host"), check("mounts", "ok", "storage")], None, host=None)


def hostile() -> DoctorReport:
    text = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m`code` " + "x" * 300
    nodes = (
        TopologyNode(id=text, kind="cpu", name=text),
        TopologyNode(id="a", kind="gpu", name=text, parent="b"),
        TopologyNode(id="b", kind="switch", name=text, parent="a"),  # a loop
        TopologyNode(id="c", kind="gpu", name=text, parent=text),
    )
    topology = Topology(sources=(text,), nodes=nodes, pairs=(TopologyPair(a=text, b="c", relation=text),))
    return report([check("gpu-x", "fail", reason=text), check("gpu-y", "unknown", reason=text)], topology, host=text)


def large() -> DoctorReport:
    """Sixteen GPUs and NICs on a switch each, and 1,000 disks."""
    nodes = [node("NUMA 0", "cpu", None)]
    for number in range(16):
        nodes.append(node(f"0000:{number:02x}:00.0", "switch", "NUMA 0"))
        nodes.append(node(f"0000:{number:02x}:01.0", "gpu", f"0000:{number:02x}:00.0"))
        nodes.append(node(f"0000:{number:02x}:02.0", "nic", f"0000:{number:02x}:00.0"))
    nodes += [node(f"0001:{number:03x}:00.0", "storage", "NUMA 0") for number in range(1000)]
    names = [f"GPU{n}" for n in range(16)] + [f"NIC{n}" for n in range(8)]
    pairs = tuple(TopologyPair(a=a, b=b, relation="NODE") for i, a in enumerate(names) for b in names[i + 1 :])
    return report(faulty().checks * 20, Topology(sources=("sysfs",), nodes=tuple(nodes), pairs=pairs))  # type: ignore[arg-type]


ALL: dict[str, Callable[[], DoctorReport]] = {
    "faulty": faulty,
    "healthy": healthy,
    "hostile": hostile,
    "large": large,
}
