"""Reports of `flatout doctor`, typed: faulty, healthy without a topology, hostile, large; and of several hosts."""

from __future__ import annotations

from collections.abc import Callable

from flatout.records.doctor import (
    CheckResult,
    ComparedFact,
    DoctorReport,
    Family,
    HostDifference,
    HostsReport,
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
        topic="what should hold",
        title=reason if status in ("fail", "warn") else f"what should hold: {reason}",
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


def one_odd() -> HostsReport:
    """Five hosts with a warning in common; the last has other settings, and no peer-to-peer."""
    common = [check("swap", "warn", "host", reason="4 GiB of swap are in use"), check("dmesg", "unknown", "host")]
    hosts = [report([*common, check("nccl-peer-to-peer", "ok", "software")], None, host=f"n{n}") for n in range(4)]
    own = [check("nccl-peer-to-peer", "fail", "software", reason="turned off: `NCCL_P2P_LEVEL=LOC`")]
    hosts.append(report([*common, *own], None, host="n9"))
    differences = (
        HostDifference(
            fact="check nccl-peer-to-peer", check="nccl-peer-to-peer",
            status="fail", hosts=("n9",), usual="neither fails nor warns",
            found={"n9": "turned off: `NCCL_P2P_LEVEL=LOC`"}, reason="on 1 of 5 hosts only: n9",
        ),
        HostDifference(
            fact="NCCL settings", status="warn", hosts=("n9",), usual="none", found={"n9": "NCCL_P2P_LEVEL=LOC"},
            reason="unlike 4 of 5 hosts: n9",
        ),
    )  # fmt: skip
    compared = (
        ComparedFact(fact="driver", num_hosts=5, usual="580.95.05"),
        ComparedFact(fact="NCCL settings", num_hosts=5, usual="none", unlike={"n9": "NCCL_P2P_LEVEL=LOC"}),
    )
    return HostsReport(
        differences=differences, compared=compared, not_compared={"kernel": "0 of 5 hosts report a value: not read"},
        hosts=tuple(hosts), not_captured={"n7": "it did not answer within 60 s"},
    )  # fmt: skip


def alike() -> HostsReport:
    hosts = tuple(report([check("governor", "ok", "host")], None, host=f"n{n}") for n in range(2))
    return HostsReport(
        differences=(), compared=(ComparedFact(fact="driver", num_hosts=2, usual="1"),), not_compared={}, hosts=hosts
    )


def no_majority() -> HostsReport:
    hosts = tuple(report([check("governor", "fail", "host")], None, host=name) for name in ("a", "b"))
    found = {"a": "580", "b": "570"}
    difference = HostDifference(
        fact="driver", status="warn", hosts=("a", "b"), usual="no value is shared by most hosts", found=found,
        reason="the hosts differ, and none is usual",
    )  # fmt: skip
    fact = ComparedFact(fact="driver", num_hosts=2, usual="no value is shared by most hosts", unlike=found)
    return HostsReport(differences=(difference,), compared=(fact,), not_compared={}, hosts=hosts)


def hostile_hosts() -> HostsReport:
    one = hostile()
    text = one.host or ""
    difference = HostDifference(fact=text, status="fail", hosts=(text,), usual=text, found={text: text}, reason=text)
    fact = ComparedFact(fact=text, num_hosts=2, usual=text, unlike={text: text})
    return HostsReport(
        differences=(difference,), compared=(fact,), not_compared={text: text}, hosts=(one, one),
        not_captured={text: text},
    )  # fmt: skip


def many_hosts() -> HostsReport:
    """1,200 hosts with long names, of which 40 have another driver and each third a fault."""
    names = [f"gpu-node-{n:04d}.eu-west.cluster.example.org" for n in range(1200)]
    odd = dict.fromkeys(names[:40], "570.124.06")
    hosts = tuple(
        report(
            [check("swap", "warn", "host"), check("gpu-ecc", "ok" if n % 3 else "fail"), check("mtu", "ok", "network")],
            None, host=name,
        )
        for n, name in enumerate(names)
    )  # fmt: skip
    difference = HostDifference(
        fact="driver", status="warn", hosts=tuple(odd), usual="580.95.05", found=odd, reason="unlike 1160 of 1200 hosts"
    )
    compared = (ComparedFact(fact="driver", num_hosts=1200, usual="580.95.05", unlike=odd),)
    return HostsReport(differences=(difference,), compared=compared, not_compared={}, hosts=hosts)


HOSTS: dict[str, Callable[[], HostsReport]] = {
    "one_odd": one_odd,
    "alike": alike,
    "no_majority": no_majority,
    "hostile": hostile_hosts,
    "many": many_hosts,
}
