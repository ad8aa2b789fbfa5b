"""Parse NCCL's topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) and graph XML into the tree and its problems.

The files that vendors ship for their virtual machines hold only `<cpu>` and `<pci>`; NCCL adds the rest.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from xml.etree import ElementTree

import msgspec

from flatout.doctor.parse.cpu_list import parse_cpu_mask
from flatout.doctor.parse.lspci import full_address
from flatout.doctor.parse.number import count_in
from flatout.records.doctor import NodeKind, PcieLink, TopologyNode

_DEEPEST = 32  # bridges above each other; a PCI domain has 256 buses, and a server three or four levels
_KINDS: dict[str, NodeKind] = {"0x0604": "switch", "0x0108": "storage", "0x0680": "nvswitch"}  # by PCI class
_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class NcclGpuLink(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # `nvlink`, or `xgmi` for AMD
    gpu: str
    target: str  # another GPU, or an NVSwitch
    count: int


class NcclTopology(msgspec.Struct, frozen=True, kw_only=True):
    is_whole: bool  # false if the text ends, or is damaged, before its last element
    nodes: tuple[TopologyNode, ...]
    affinity: dict[str, frozenset[int] | None]  # NUMA node -> its CPUs; None if the file gives none
    links: tuple[NcclGpuLink, ...]
    num_nets: int
    problems: tuple[str, ...]


class NcclGraph(msgspec.Struct, frozen=True, kw_only=True):
    """How NCCL laid out one kind of collective: one `<graph>`."""

    pattern: int
    num_channels: int
    inside_gb_per_s: float  # per channel
    inside: str  # the worst kind of path within the host
    between: str  # the worst kind of path to the network
    has_network: bool  # its channels begin and end at a NIC


def parse_nccl_topology(text: str) -> NcclTopology:
    """Parse a topology. From a truncated text, keep only complete elements. Raises ValueError if there are none."""
    problems: list[str] = []
    try:
        root = _root(text)
    except ValueError as error:
        root = _root_of_part(text, error)
        problems.append(str(error))
    if root.tag != "system":
        raise ValueError(f"the XML begins with <{root.tag}>, not <system>")
    tree = _Tree(problems)
    is_whole = not problems
    for cpu in root.findall("cpu"):
        tree.read_cpu(cpu)
    return NcclTopology(
        is_whole=is_whole,
        nodes=tuple(tree.nodes),
        affinity=tree.affinity,
        links=tuple(tree.links),
        num_nets=len(root.findall(".//net")),
        problems=tuple(problems),
    )


def parse_nccl_graph(text: str) -> tuple[NcclGraph, ...]:
    root = _root(text)
    if root.tag != "graphs":
        raise ValueError(f"the XML begins with <{root.tag}>, not <graphs>")
    return tuple(
        NcclGraph(
            pattern=int(graph.get("pattern", "-1")),
            num_channels=int(graph.get("nchannels", "0")),
            inside_gb_per_s=float(graph.get("speedintra", "0")),
            inside=graph.get("typeintra", ""),
            between=graph.get("typeinter", ""),
            has_network=graph.find("channel/net") is not None,
        )
        for graph in root.findall("graph")
    )


class _EntitiesError(ValueError):
    """The XML declares entities, with which a small text may become a huge one."""


def _root(text: str) -> ElementTree.Element:
    """Return the root of the XML in the text, which may be quoted within other text, as in a post."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise _EntitiesError("the XML declares entities, which NCCL's files never do")
    if start := re.search(r"<(system|graphs)[ >]", text):
        closing_tag = f"</{start[1]}>"
        end = text.rfind(closing_tag)
        if end >= 0:
            text = text[start.start() : end + len(closing_tag)]
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the XML is incomplete or damaged: {error}") from error


class _Builder(ElementTree.TreeBuilder):
    """Tracks the elements that have begun and not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.root: ElementTree.Element | None = None
        self.open: list[ElementTree.Element] = []

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        element = super().start(tag, attrs)
        self.root = element if self.root is None else self.root
        self.open.append(element)
        return element

    def end(self, tag: str, /) -> ElementTree.Element:
        self.open.pop()
        return super().end(tag)


def _root_of_part(text: str, error: ValueError) -> ElementTree.Element:
    """Return the root with the elements before the text ends.

    An element that has not ended is kept only if it is a CPU or a bridge: any other may lack a part.
    Raises the error if no element is left.
    """
    start = re.search(r"<system[ >]", text)
    if start is None or isinstance(error, _EntitiesError):
        raise error
    builder = _Builder()
    with suppress(ElementTree.ParseError):
        ElementTree.XMLParser(target=builder).feed(text[start.start() :])
    if builder.root is None:
        raise error
    for parent, element in pairwise(builder.open):
        is_bridge = element.tag == "pci" and element.get("class", "").startswith("0x0604")
        if element.tag != "cpu" and not is_bridge:
            parent.remove(element)
            break
    return builder.root


class _Tree:
    """The nodes and links of the CPUs read so far."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        self.nodes: list[TopologyNode] = []
        self.links: list[NcclGpuLink] = []
        self.affinity: dict[str, frozenset[int] | None] = {}
        self._addresses: set[str] = set()

    def read_cpu(self, cpu: ElementTree.Element) -> None:
        number = cpu.get("numaid", "")
        numa_node = count_in(number)
        name = f"NUMA {number}"
        self.nodes.append(TopologyNode(id=name, kind="cpu", name=cpu.get("vendor") or name, numa_node=numa_node))
        self.affinity[name] = self._read_affinity(cpu, name)
        # A NIC for which NCCL found no PCI address, such as a virtual one.
        for net in cpu.findall("nic/net"):
            nic = net.get("name") or "network without a name"
            self.nodes.append(TopologyNode(id=nic, kind="nic", name=nic, parent=name, numa_node=numa_node))
        for pci in cpu.findall("pci"):
            self._read_pci(pci, name, numa_node)

    def _read_affinity(self, cpu: ElementTree.Element, name: str) -> frozenset[int] | None:
        mask = cpu.get("affinity")
        if not mask:
            self.problems.append(f"{name} has no `affinity`: NCCL leaves the ranks there unbound")
            return None
        if not re.fullmatch(r"[0-9a-fA-Fx, ]+", mask):
            self.problems.append(f"the `affinity` of {name} is `{mask}`, and NCCL reads masks (`ffff,00000000`)")
            return None
        return parse_cpu_mask(mask)

    def _read_pci(self, pci: ElementTree.Element, parent: str, numa_node: int | None, depth: int = 0) -> None:
        bus_id = pci.get("busid", "")
        if not _ADDRESS.fullmatch(bus_id):
            self.problems.append(f"a <pci> has the address `{bus_id}`, and is skipped with everything below it")
            return
        address = full_address(bus_id)
        if depth == _DEEPEST:
            self.problems.append(f"{address} is below {_DEEPEST} bridges, and is skipped with everything below it")
            return
        if address in self._addresses:  # a tree in which a device is above itself would have no end
            self.problems.append(f"{address} appears more than once, and is used once")
            for child in pci.findall("pci"):
                self._read_pci(child, address, numa_node, depth + 1)
            return
        self._addresses.add(address)
        link = _link(pci)
        if link.speed_gt_per_s is None or link.width is None:
            self.problems.append(f"the link of {address} has no speed or width: NCCL assumes default values")
        kind = _kind(pci)
        node = TopologyNode(id=address, kind=kind, name=kind, parent=parent, numa_node=numa_node, link=link)
        self.nodes.append(node)
        for gpu in pci.findall("gpu"):
            self._read_gpu_links(gpu, address)
        for child in pci.findall("pci"):
            self._read_pci(child, address, numa_node, depth + 1)

    def _read_gpu_links(self, gpu: ElementTree.Element, address: str) -> None:
        for link in (*gpu.findall("nvlink"), *gpu.findall("xgmi")):
            target, count = link.get("target", ""), link.get("count", "")
            if _ADDRESS.fullmatch(target) and count.isdecimal():
                self.links.append(
                    NcclGpuLink(kind=link.tag, gpu=address, target=full_address(target), count=int(count))
                )
            else:
                self.problems.append(f"a link of {address} has the target `{target}` and the count `{count}`")


def _link(pci: ElementTree.Element) -> PcieLink:
    speed = re.match(r"([\d.]+) ?GT/s", pci.get("link_speed", ""))
    width = count_in(pci.get("link_width"))
    return PcieLink(speed_gt_per_s=float(speed[1]) if speed else None, width=width or None)


def _kind(pci: ElementTree.Element) -> NodeKind:
    pci_class = pci.get("class", "")
    if pci.find("gpu") is not None or pci_class.startswith(("0x0302", "0x0300")):
        return "gpu"
    if pci.find("nic") is not None or pci_class.startswith("0x02"):
        return "nic"
    for prefix, kind in _KINDS.items():
        if pci_class.startswith(prefix):
            return kind
    return "other"
