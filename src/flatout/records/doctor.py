"""The report of `flatout doctor` on one machine: a result of every check, and how its devices are connected."""

from __future__ import annotations

from typing import Literal

import msgspec

Family = Literal["gpu", "software", "host", "network", "storage"]
Status = Literal["ok", "info", "warn", "fail", "unknown"]
NodeKind = Literal["cpu", "root_port", "chipset_port", "switch", "bridge", "gpu", "nvswitch", "nic", "storage", "other"]

FAMILIES: tuple[Family, ...] = ("gpu", "software", "host", "network", "storage")
STATUSES: tuple[Status, ...] = ("fail", "warn", "unknown", "info", "ok")  # the most urgent first


Traffic = Literal["pcie", "gpus", "network"]  # which a path or link carries
GainBasis = Literal["bandwidth", "unknown-bandwidth", "one-host", "other-host", "no-gpu", "no-steps"]


class JobTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """A job's traffic according to its recording: seconds per step, each on the rank with the maximum."""

    hosts: tuple[str, ...]  # names of its hosts, if known
    num_hosts: int | None  # None: unknown
    has_gpu: bool
    step_s: float | None  # None: the recording has no complete step
    copies_s: float = 0.0  # exposed copies between host and GPU
    transfer_s: float = 0.0  # exposed communication, excluding waits for late ranks if the traces show these


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The gain for a job from fixing a defect of a path or link."""

    traffic: Traffic  # which the path carries: over PCIe, between GPUs of a host, or between hosts
    basis: GainBasis  # how the bound was found, or why no bound is known
    at_most_s: float | None = None  # seconds per step; null: unknown
    step_share: float | None = None  # of the step


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check on one machine."""

    id: str
    family: Family
    status: Status  # `unknown` if it could not be judged, with the reason; never `ok` then
    topic: str  # subject of the check
    title: str  # the finding: `Xid 119 on 0000:9b:00`; if nothing is at fault, the topic followed by the result
    read: str  # data that is read, and its source
    reason: str  # details of the finding, or why the check could not judge
    expected: str
    source: str  # source of the expected value
    cost: str  # effect on a training job
    fix: str
    when_wrong: str
    gain: Gain | None = None  # of a path or link that fails or warns, if a recording of a job was given


class PcieLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link towards the CPU; a value that was not read is None."""

    speed_gt_per_s: float | None = None
    width: int | None = None
    max_speed_gt_per_s: float | None = None
    max_width: int | None = None


class TopologyNode(msgspec.Struct, frozen=True, kw_only=True):
    id: str  # PCI address, or another name: `NUMA 0`, `GPU0`
    kind: NodeKind
    name: str
    parent: str | None = None  # id of the node nearer to the CPU
    numa_node: int | None = None
    link: PcieLink | None = None


class TopologyPair(msgspec.Struct, frozen=True, kw_only=True):
    """How two devices are connected, in terms of `nvidia-smi topo -m`: NV#, PIX, PXB, PHB, NODE, SYS; also XGMI."""

    a: str
    b: str
    relation: str


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    sources: tuple[str, ...]
    nodes: tuple[TopologyNode, ...] = ()
    pairs: tuple[TopologyPair, ...] = ()
    problems: tuple[str, ...] = ()  # information missing in the sources


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results for one machine."""

    host: str | None
    taken_at: str | None  # when it was read; UTC, ISO 8601
    read_from: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    topology: Topology | None  # null if no source shows any of it


class HostDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact in which some hosts differ from the others."""

    fact: str
    check: str | None = None  # the check's id, if the fact is the status of a check on each host
    status: Status
    hosts: tuple[str, ...]  # hosts that differ
    usual: str  # value of most hosts
    found: dict[str, str]  # by host
    reason: str


class ComparedFact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that was compared between hosts, whether they differ in it or not."""

    fact: str
    num_hosts: int  # hosts with a value
    usual: str  # value of most hosts; for a number, the median and the range
    unlike: dict[str, str] = {}  # by host
    is_range: bool = False  # hosts differ in it at any time, such as their load: `usual` has the range


class HostsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Several machines, each judged separately and compared with the others."""

    differences: tuple[HostDifference, ...]
    compared: tuple[ComparedFact, ...]
    not_compared: dict[str, str]  # fact -> why
    hosts: tuple[DoctorReport, ...]
    not_captured: dict[str, str] = {}  # host, or the file of its bundle -> why nothing was read
