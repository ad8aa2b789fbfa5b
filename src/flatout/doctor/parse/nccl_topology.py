"""NCCL's topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) and graph XML -> the tree and what is wrong with it.

The files that vendors give for their virtual machines hold only `<cpu>` and `<pci>`; NCCL fills in the rest.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import msgspec

from flatout.doctor.parse.cpu_list import parse_cpu_mask
from flatout.doctor.parse.lspci import full_address
from flatout.records.doctor import NodeKind, PcieLink, TopologyNode


class NcclTopology(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[TopologyNode, ...]
    affinity: dict[str, frozenset[int] | None]  # NUMA node -> its CPUs; None where the file does not say
    nvlinks: tuple[tuple[str, str, int], ...]  # address, target, count
    num_nets: int
    problems: tuple[str, ...]


class NcclGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One `<graph>`: how NCCL laid one kind of collective out."""

    pattern: int
    num_channels: int
    inside: str  # the worst kind of path within the host
    between: str


def parse_nccl_topology(text: str) -> NcclTopology:
    """Raises ValueError for anything that is no whole XML with a `<system>`."""
    root = _root(text)
    if root.tag != "system":
        raise ValueError(f"the XML begins with <{root.tag}>, not <system>")
    nodes: list[TopologyNode] = []
    links: list[tuple[str, str, int]] = []
    affinity: dict[str, frozenset[int] | None] = {}
    problems: list[str] = []
    for cpu in root.findall("cpu"):
        numa = cpu.get("numaid", "")
        name = f"NUMA {numa}"
        nodes.append(TopologyNode(id=name, kind="cpu", name=cpu.get("vendor") or name, numa_node=_node_number(numa)))
        mask = cpu.get("affinity")
        affinity[name] = parse_cpu_mask(mask) if mask else None
        if not mask:
            problems.append(f"{name} has no `affinity`: NCCL leaves the ranks there unbound")
        for child in cpu.findall("pci"):
            _read_pci(child, name, _node_number(numa), nodes, links, problems)
    return NcclTopology(
        nodes=tuple(nodes),
        affinity=affinity,
        nvlinks=tuple(links),
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
            inside=graph.get("typeintra", ""),
            between=graph.get("typeinter", ""),
        )
        for graph in root.findall("graph")
    )


def _root(text: str) -> ElementTree.Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("the XML declares entities, which no file of NCCL does")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"the XML is not whole: {error}") from error


def _read_pci(
    pci: ElementTree.Element,
    parent: str,
    numa: int | None,
    nodes: list[TopologyNode],
    links: list[tuple[str, str, int]],
    problems: list[str],
) -> None:
    address = full_address(pci.get("busid", ""))
    speed = re.match(r"([\d.]+) ?GT/s", pci.get("link_speed") or "")
    width = int(pci.get("link_width") or 0)
    if not speed or not width:
        problems.append(f"the link of {address} has no speed or width: NCCL assumes some")
    link = PcieLink(speed_gt_per_s=float(speed[1]) if speed else None, width=width or None)
    kind = _kind(pci)
    nodes.append(TopologyNode(id=address, kind=kind, name=kind, parent=parent, numa_node=numa, link=link))
    for gpu in pci.findall("gpu"):
        links += [
            (address, full_address(nvlink.get("target", "")), int(nvlink.get("count", "0")))
            for nvlink in gpu.findall("nvlink")
        ]
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
