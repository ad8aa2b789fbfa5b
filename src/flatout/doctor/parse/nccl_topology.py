"""NCCL's topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) and graph XML -> the tree and what is wrong with it.

The files that vendors give for their virtual machines hold only `<cpu>` and `<pci>`; NCCL fills in the rest.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from xml.etree import ElementTree

import msgspec

from flatout.doctor.parse.cpu_list import parse_cpu_mask
from flatout.doctor.parse.lspci import full_address
from flatout.records.doctor import NodeKind, PcieLink, TopologyNode

_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class GpuLink(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # `nvlink` or, of AMD, `xgmi`
    gpu: str
    target: str  # another GPU, or a NVSwitch
    count: int


class NcclTopology(msgspec.Struct, frozen=True, kw_only=True):
    is_whole: bool  # else the text ends, or is damaged, before its last element
    nodes: tuple[TopologyNode, ...]
    affinity: dict[str, frozenset[int] | None]  # NUMA node -> its CPUs; None where the file does not say
    links: tuple[GpuLink, ...]
    num_nets: int
    problems: tuple[str, ...]


class NcclGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One `<graph>`: how NCCL laid one kind of collective out."""

    pattern: int
    num_channels: int
    inside_gb_per_s: float  # of each channel
    inside: str  # the worst kind of path within the host
    between: str
    has_network: bool  # its channels begin and end at a NIC


def parse_nccl_topology(text: str) -> NcclTopology:
    """Of a text that is cut off, what is certain. Raises ValueError where not even its first element is."""
    problems: list[str] = []
    try:
        root = _root(text)
    except ValueError as error:
        root = _root_of_part(text, error)
        problems.append(str(error))
    is_whole = not problems
    if root.tag != "system":
        raise ValueError(f"the XML begins with <{root.tag}>, not <system>")
    nodes: list[TopologyNode] = []
    links: list[GpuLink] = []
    affinity: dict[str, frozenset[int] | None] = {}
    for cpu in root.findall("cpu"):
        numa = cpu.get("numaid", "")
        name = f"NUMA {numa}"
        nodes.append(TopologyNode(id=name, kind="cpu", name=cpu.get("vendor") or name, numa_node=_node_number(numa)))
        mask = cpu.get("affinity")
        affinity[name] = None
        if not mask:
            problems.append(f"{name} has no `affinity`: NCCL leaves the ranks there unbound")
        elif re.fullmatch(r"[0-9a-fA-Fx, ]+", mask):
            affinity[name] = parse_cpu_mask(mask)
        else:
            problems.append(f"the `affinity` of {name} is `{mask}`, and NCCL reads masks (`ffff,00000000`)")
        # A NIC that NCCL found no PCI address for, as a virtual one.
        for net in cpu.findall("nic/net"):
            nic = net.get("name") or "network without a name"
            nodes.append(TopologyNode(id=nic, kind="nic", name=nic, parent=name, numa_node=_node_number(numa)))
        for child in cpu.findall("pci"):
            _read_pci(child, name, _node_number(numa), nodes, links, problems)
    return NcclTopology(
        is_whole=is_whole,
        nodes=tuple(nodes),
        affinity=affinity,
        links=tuple(links),
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


def _root(text: str) -> ElementTree.Element:
    """Of the XML in the text, which a post may have put in a fence."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("the XML declares entities, which no file of NCCL does")
    if (start := re.search(r"<(system|graphs)[ >]", text)) and (end := text.rfind(f"</{start[1]}>")) >= 0:
        text = text[start.start() : end + len(f"</{start[1]}>")]
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the XML is not whole: {error}") from error


class _Builder(ElementTree.TreeBuilder):
    """Remembers the elements that have begun and not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.root: ElementTree.Element | None = None
        self.begun: list[ElementTree.Element] = []

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        element = super().start(tag, attrs)
        self.root = element if self.root is None else self.root
        self.begun.append(element)
        return element

    def end(self, tag: str, /) -> ElementTree.Element:
        self.begun.pop()
        return super().end(tag)


def _root_of_part(text: str, error: ValueError) -> ElementTree.Element:
    """The elements before the text ends, without those of which a part may be missing, other than CPUs and bridges.

    Raises the error where there is none.
    """
    if (start := re.search(r"<system[ >]", text)) is None or "declares entities" in str(error):
        raise error
    builder = _Builder()
    with suppress(ElementTree.ParseError):
        ElementTree.XMLParser(target=builder).feed(text[start.start() :])
    if builder.root is None:
        raise error
    root, begun = builder.root, builder.begun
    for upper, element in pairwise(begun):
        is_bridge = element.tag == "pci" and element.get("class", "").startswith("0x0604")
        if element.tag != "cpu" and not is_bridge:
            upper.remove(element)
            break
    return root


def _read_pci(
    pci: ElementTree.Element,
    parent: str,
    numa: int | None,
    nodes: list[TopologyNode],
    links: list[GpuLink],
    problems: list[str],
) -> None:
    if not _ADDRESS.fullmatch(pci.get("busid", "")):
        problems.append(f"a <pci> has the address `{pci.get('busid', '')}`, and is left out with what is below")
        return
    address = full_address(pci.get("busid", ""))
    speed = re.match(r"([\d.]+) ?GT/s", pci.get("link_speed") or "")
    lanes = pci.get("link_width") or ""
    width = int(lanes) if lanes.isdecimal() else 0
    if not speed or not width:
        problems.append(f"the link of {address} has no speed or width: NCCL assumes some")
    link = PcieLink(speed_gt_per_s=float(speed[1]) if speed else None, width=width or None)
    kind = _kind(pci)
    nodes.append(TopologyNode(id=address, kind=kind, name=kind, parent=parent, numa_node=numa, link=link))
    for gpu in pci.findall("gpu"):
        for nvlink in (*gpu.findall("nvlink"), *gpu.findall("xgmi")):
            target, count = nvlink.get("target", ""), nvlink.get("count", "")
            if _ADDRESS.fullmatch(target) and count.isdecimal():
                links.append(GpuLink(kind=nvlink.tag, gpu=address, target=full_address(target), count=int(count)))
            else:
                problems.append(f"a link of {address} has the target `{target}` and the count `{count}`")
    for child in pci.findall("pci"):
        _read_pci(child, address, numa, nodes, links, problems)


def _kind(pci: ElementTree.Element) -> NodeKind:
    number = pci.get("class", "")
    if pci.find("gpu") is not None or number.startswith(("0x0302", "0x0300")):
        return "gpu"
    if pci.find("nic") is not None or number.startswith("0x02"):
        return "nic"
    if number.startswith("0x0604"):
        return "switch"
    if number.startswith("0x0108"):
        return "storage"
    return "nvswitch" if number.startswith("0x0680") else "other"


def _node_number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
