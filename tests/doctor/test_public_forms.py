"""Forms in which users post what tools and logs say, re-typed and shortened: nothing is guessed, and nothing missed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doctor.samples import HEALTHY_MATRIX, lspci_gpu, printed, rdma_port, result, sysfs

from flatout.doctor.graph import topology_of
from flatout.doctor.inputs import kind_of, read_inputs, texts_of
from flatout.doctor.machine import (
    LSPCI,
    SMI_LIST,
    SMI_NVLINK,
    SMI_P2P,
    SMI_QUERY,
    SMI_TOPOLOGY,
    Machine,
)
from flatout.doctor.parse.nccl_topology import parse_nccl_topology
from flatout.doctor.unknown import NotReadError
from flatout.errors import InputError
from flatout.records.snapshot import Output, Snapshot

LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"


def pairs_of(snapshot: Snapshot) -> dict[tuple[str, str], str]:
    topology = topology_of(Machine(snapshot))
    assert topology is not None
    return {(pair.a, pair.b): pair.relation for pair in topology.pairs}


# `nvidia-smi topo`

CUT_ROW = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tPIX\tSYS\t0-31\t0\nGPU1\tNV4\t X \tSYS"
)


def test_of_a_row_that_is_cut_off_a_near_nic_may_be_missing() -> None:
    found = result("topology-nic-distance", printed(SMI_TOPOLOGY, CUT_ROW))
    assert (found.status, "1 GPUs are unknown" in found.reason) == ("unknown", True)
    whole = result("topology-nic-distance", printed(SMI_TOPOLOGY, CUT_ROW + "\tSYS\t32-63\t1\n"))
    assert (whole.status, "GPU1" in whole.reason, "GPU0" in whole.reason) == ("warn", True, False)
    glued = CUT_ROW.replace("PIX\tSYS", "PIXSYS") + "\tPIX\t32-63\t1\n"
    assert result("topology-nic-distance", printed(SMI_TOPOLOGY, glued)).status == "unknown"


def test_soc_of_old_drivers_is_across_sockets() -> None:
    old = CUT_ROW.replace("SYS", "SOC") + "\tSOC\t32-63\t1\n"
    assert result("topology-nic-distance", printed(SMI_TOPOLOGY, old)).status == "warn"


@pytest.mark.parametrize("width", range(20, 80))
def test_a_matrix_that_a_narrow_terminal_has_broken_never_contradicts_the_whole(width: int) -> None:
    text = HEALTHY_MATRIX.expandtabs(8)
    whole = Machine(printed(SMI_TOPOLOGY, text)).matrix
    broken = [line[start : start + width] for line in text.splitlines() for start in range(0, len(line) or 1, width)]
    try:
        part = Machine(printed(SMI_TOPOLOGY, "\n".join(broken) + "\n")).matrix
    except NotReadError:
        return
    assert part.cells.items() <= whole.cells.items()
    assert part.cpus.items() <= whole.cpus.items()


def test_matrices_of_one_text_are_not_mixed() -> None:
    peer = " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n"
    near = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
    text = f"$ nvidia-smi topo -m\n{near}{LEGEND}\n$ nvidia-smi topo -p2p rw\n{peer}"
    assert set(texts_of(text)) == {SMI_TOPOLOGY, SMI_P2P}
    snapshot = Snapshot(outputs={name: Output(text=part) for name, part in texts_of(text).items()})
    assert pairs_of(snapshot) == {("GPU0", "GPU1"): "PHB"}
    assert "GNS" in result("gpu-peer-to-peer", snapshot).reason
    two = Machine(printed(SMI_TOPOLOGY, near + LEGEND + "[b]$ nvidia-smi topo -m\n" + near.replace("PHB", "SYS")))
    assert two.matrix.cells["GPU0", "GPU1"] == "PHB"
    assert "1 more matrices" in two.matrix.problems[0]


def test_a_matrix_that_never_shows_nvlink_says_nothing_of_it() -> None:
    pcie = "\tGPU0\tGPU1\nGPU0\t X \tNODE\nGPU1\tNODE\t X \n"
    shown = pcie + LEGEND + "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    assert result("gpu-nvlink-matrix", printed(SMI_TOPOLOGY, shown)).status == "info"
    for hidden in (pcie + LEGEND, f"$ nvidia-smi topo -mp\n{pcie}"):
        assert result("gpu-nvlink-matrix", printed(SMI_TOPOLOGY, hidden)).status == "unknown"


GRACE = """\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tSYS\tSYS\t0-71\t0,3-9\t2
GPU1\tNV18\t X \tSYS\tSYS\t72-143\t1,19-25\t18
"""


def test_on_grace_gpus_are_numa_nodes_of_their_own() -> None:
    topology = topology_of(Machine(printed(SMI_TOPOLOGY, GRACE)))
    assert topology is not None
    above = {node.id: node.parent for node in topology.nodes}
    assert (above["GPU0"], above["GPU1"]) == ("NUMA 0,3-9", "NUMA 1,19-25")
    assert result("topology-numa-known", printed(SMI_TOPOLOGY, GRACE)).status == "ok"
    assert result("topology-nic-distance", printed(SMI_TOPOLOGY, GRACE)).status == "unknown"
    assert result("topology-nic-share", printed(SMI_TOPOLOGY, GRACE)).status == "info"
    virtual = GRACE.replace("1,19-25", "0-1").replace("0,3-9", "0-1")
    assert result("topology-numa-known", printed(SMI_TOPOLOGY, virtual)).status == "unknown"


def test_a_nic_is_on_the_numa_node_of_the_gpus_that_are_near() -> None:
    topology = topology_of(Machine(printed(SMI_TOPOLOGY, HEALTHY_MATRIX)))
    assert topology is not None
    nodes = {node.id: node.numa_node for node in topology.nodes}
    assert (nodes["NIC0"], nodes["NIC1"]) == (nodes["GPU0"], nodes["GPU2"])
    assert None not in nodes.values()


# `nvidia-smi -q`, `-L` and `nvlink`

PART_OF_QUERY = """==============NVSMI LOG==============

Attached GPUs                             : 8
GPU 00000000:10:1C.0
    Persistence Mode                      : Enabled
    Remapped Rows
        Uncorrectable Error               : {rows}
        Pending                           : No
        Remapping Failure Occurred        : No
"""


def test_gpus_that_are_counted_but_not_described_are_missing() -> None:
    for check_id in ("gpu-persistence", "gpu-row-remap", "gpu-same-model"):
        assert result(check_id, printed(SMI_QUERY, PART_OF_QUERY.format(rows=4))).status == "unknown"
    alone = PART_OF_QUERY.format(rows=4).replace(": 8", ": 1")
    assert result("gpu-row-remap", printed(SMI_QUERY, alone)).status == "ok"
    assert result("gpu-row-remap", printed(SMI_QUERY, PART_OF_QUERY.format(rows=513))).status == "fail"
    bus = {}
    for number in (1, 2):
        bus |= sysfs(f"/sys/bus/pci/devices/0000:0{number}:00.0", **{"class": "0x030200", "vendor": "0x10de"})
    part = Snapshot(files=bus, outputs={SMI_QUERY: Output(text=alone.replace(": 1", ": 2"))})
    assert result("gpu-count", part).status == "unknown"


def test_an_empty_list_of_gpus_is_no_list() -> None:
    assert result("gpu-mig", printed(SMI_LIST, "\n")).status == "unknown"


def test_a_list_of_gpus_that_is_cut_off_says_nothing_of_what_it_lacks() -> None:
    gpu = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)"
    device = "  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)"
    assert result("gpu-mig", printed(SMI_LIST, gpu + "\n")).status == "ok"
    assert result("gpu-mig", printed(SMI_LIST, f"$ nvidia-smi -L\n{gpu}\n\nThat is all.\n")).status == "ok"
    assert result("gpu-mig", printed(SMI_LIST, gpu[:50])).status == "unknown"
    assert result("gpu-mig", printed(SMI_LIST, f"{gpu}\n{device[:7]}")).status == "unknown"
    assert result("gpu-mig", printed(SMI_LIST, f"{gpu}\n{device}\n{device[:50]}")).status == "fail"


def test_gpus_whose_rows_are_cut_off_are_not_said_to_have_a_numa_node() -> None:
    header, *rows = HEALTHY_MATRIX.splitlines(keepends=True)
    assert result("topology-numa-known", printed(SMI_TOPOLOGY, HEALTHY_MATRIX)).status == "ok"
    for part in (header + "".join(rows[:2]), "".join(rows[:2]), "".join(rows[:2]) + rows[2][:5]):
        assert result("topology-numa-known", printed(SMI_TOPOLOGY, part)).status == "unknown", part


NVLINK = "".join(f"GPU {n}: NVIDIA A (UUID: GPU-{n})\n\t Link 0: {{a}}\n\t Link 1: {{b}}\n" for n in (0, 1))


def test_links_that_are_inactive_on_all_gpus_alike_are_told() -> None:
    up = NVLINK.format(a="25 GB/s", b="25 GB/s")
    assert result("gpu-nvlink-active", printed(SMI_NVLINK, up)).status == "ok"
    assert result("gpu-nvlink-active", printed(SMI_NVLINK, NVLINK.format(a="25 GB/s", b="<inactive>"))).status == "info"
    assert (
        kind_of(NVLINK.format(a="Remote Device 00000000:07:00.0: Link 46", b="Remote Device 1:0:0.0: Link 2")) is None
    )
    none = "GPU 0: NVIDIA A (UUID: GPU-0)\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
    assert kind_of(none) == SMI_NVLINK


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("+-----+\n| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15 |\n", "`nvidia-smi -q`"),
        ("-+-[0000:00]-+-00.0\n |           +-01.1-[01]--+-00.0\n", "`lspci -vvv`"),
    ],
)
def test_what_to_give_instead_is_named(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "given").write_text(text)
    with pytest.raises(InputError) as caught:
        read_inputs([tmp_path / "given"])
    assert hint in (caught.value.hint or "")


# `lspci`


def test_a_gpu_that_reads_as_ones_has_fallen_off_the_bus() -> None:
    good = "1a:00.0 VGA compatible controller: NVIDIA Corporation GA102 (rev a1)\n"
    gone = "b1:00.0 VGA compatible controller: NVIDIA Corporation GA102 (rev ff)\n"
    found = result("gpu-count", printed(LSPCI, good + gone))
    assert (found.status, "0000:b1:00.0" in found.reason, "1a" in found.reason) == ("fail", True, False)
    shown = gone.replace("(rev ff)", "(rev a1)") + "\t!!! Unknown header type 7f\n"
    assert result("gpu-count", printed(LSPCI, good + shown)).status == "fail"
    assert result("gpu-count", printed(LSPCI, good)).status == "unknown"


def test_links_of_nvme_disks_are_read_from_lspci_too() -> None:
    disk = (
        "c1:00.0 Non-Volatile memory controller: Micron 7450\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x4\n\t\tLnkSta:\tSpeed 16GT/s, Width x{}\n"
    )
    for width, status in ((4, "ok"), (1, "warn")):
        assert result("storage-nvme-link", printed(LSPCI, disk.format(width))).status == status


# XML of NCCL

XML = """<system version="1">
  <cpu numaid="0" affinity="{mask}" vendor="GenuineIntel">
    <pci busid="0000:0a:00.0" class="0x060400" link_speed="{speed}" link_width="{width}">
      <pci busid="0000:0b:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="0">
        <gpu dev="0" sm="90"><{tag} target="{target}" count="{count}" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="0">
        <gpu dev="1" sm="90"><{tag} target="{back}" count="{count}" tclass="0x068000"/></gpu>
      </pci>
    </pci>
    <nic><net name="eth0" dev="0" speed="10000"/></nic>
  </cpu>
</system>
"""
USUAL = {
    "mask": "ff",
    "speed": "32.0 GT/s PCIe",
    "width": "16",
    "tag": "nvlink",
    "target": "0000:05:00.0",
    "back": "0000:05:00.0",
    "count": "18",
}


def xml(**changed: str) -> Snapshot:
    return printed("NCCL topology XML", XML.format(**USUAL | changed))


@pytest.mark.parametrize(
    ("changed", "relation"),
    [
        ({}, "NV18"),  # both through a NVSwitch
        ({"target": "0000:0c:00.0", "back": "0000:0b:00.0", "count": "4"}, "NV4"),
        ({"target": "0000:0c:00.0", "back": "0000:0b:00.0", "count": "1", "tag": "xgmi"}, "XGMI"),
        ({"target": "1,2,3", "count": ""}, "PIX"),
    ],
)
def test_links_between_gpus_are_in_the_graph(changed: dict[str, str], relation: str) -> None:
    pairs = pairs_of(xml(**changed))
    assert pairs["0000:0b:00.0", "0000:0c:00.0"] == relation
    assert not any("eth0" in pair for pair in pairs)  # where it is plugged in is not known


def test_what_a_topology_file_says_wrong_does_not_lose_the_rest() -> None:
    assert result("topology-nccl-file", xml()).status == "info"  # links without a width
    odd = result("topology-nccl-file", xml(mask="0-7"))
    assert (odd.status, "0-7" in odd.reason) == ("info", True)
    slow = result("topology-nccl-file", xml(speed="2.5 GT/s PCIe", width="1"))
    assert (slow.status, "0000:0a:00.0" in slow.reason) == ("warn", True)
    topology = topology_of(Machine(xml(mask="0-7")))
    assert topology is not None
    assert [node.kind for node in topology.nodes].count("gpu") == 2
    assert "eth0" in {node.id for node in topology.nodes}


def test_of_a_topology_file_that_is_cut_off_only_what_is_certain_is_in_the_graph() -> None:
    text = XML.format(**USUAL | {"target": "0000:0c:00.0", "back": "0000:0b:00.0"})
    whole = Machine(printed("NCCL topology XML", text)).nccl_topology
    seen = set()
    for end in range(len("<system version='1'>"), text.index("</system>") + len("</system>") - 1):
        snapshot = printed("NCCL topology XML", text[:end])
        part = Machine(snapshot).nccl_topology
        assert not part.is_whole
        assert set(part.nodes) <= set(whole.nodes), end
        assert set(part.links) <= set(whole.links), end
        seen.add(len(part.nodes))
        for check_id in ("topology-nccl-file", "topology-numa-known", "topology-nic-distance", "topology-nic-share"):
            assert result(check_id, snapshot).status == "unknown", (check_id, end)
    assert seen == {0, 1, 2, 3, 4, 5}
    with pytest.raises(ValueError, match="incomplete or damaged"):
        parse_nccl_topology("<syst")


def test_a_device_without_an_address_is_left_out_and_told() -> None:
    odd = XML.format(**USUAL).replace("0000:0c:00.0", "?")
    found = Machine(printed("NCCL topology XML", odd)).nccl_topology
    assert [node.kind for node in found.nodes].count("gpu") == 1
    assert any("`?`" in problem for problem in found.problems)


def test_a_topology_file_in_a_fence_is_read() -> None:
    fenced = f"as follows\n\n```\n{XML.format(**USUAL)}```\n\nWhat is wrong?\n"
    assert pairs_of(printed("NCCL topology XML", fenced)) == {("0000:0b:00.0", "0000:0c:00.0"): "NV18"}


@pytest.mark.parametrize(
    ("inside", "between", "status"), [("NVL", "PIX", "ok"), ("NVL", "PHB", "info"), ("SYS", "SYS", "warn")]
)
def test_the_paths_of_a_graph_file_are_judged(inside: str, between: str, status: str) -> None:
    text = (
        f'<graphs version="1"><graph id="0" pattern="4" nchannels="2" speedintra="12" typeintra="{inside}" '
        f'typeinter="{between}"><channel><net dev="3"/><gpu dev="0"/><net dev="0"/></channel></graph></graphs>'
    )
    assert result("nccl-log-paths", printed("NCCL graph XML", text)).status == status


# Copies of /sys


def test_a_copy_of_sys_is_read_through_its_links(tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    device.mkdir(parents=True)
    port = device.parent
    (port / "modalias").write_text("pci:v00001022d00001453sv00001022sd00001453bc06sc04i00\n")
    (device / "modalias").write_text("pci:v000010DEd000015F8sv000010DEsd0000118Fbc03sc02i00\n")
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for folder in (port, device):
        (bus / folder.name).symlink_to(f"../../../devices/{folder.relative_to(tmp_path / 'sys/devices')}")
    machine = Machine(read_inputs([tmp_path]))
    assert machine.num_gpus == 1
    topology = topology_of(machine)
    assert topology is not None
    assert [(node.kind, node.id) for node in topology.nodes if node.kind != "cpu"] == [
        ("root_port", "0000:00:01.0"),
        ("gpu", "0000:01:00.0"),
    ]


def board(vendor: str, switch: str) -> Snapshot:
    """A GPU below a switch below a root port."""
    below = {"0000:00:01.0": ("0x060400", vendor, "0x1453"), "0000:01:00.0": ("0x060400", vendor, switch)}
    below |= {"0000:02:00.0": ("0x030200", "0x10de", "0x2684")}
    files: dict[str, str] = {}
    for address, (kind, maker, device) in below.items():
        files |= sysfs(f"/sys/bus/pci/devices/{address}", **{"class": kind, "vendor": maker, "device": device})
    path = "/sys/devices/pci0000:00"
    links = {f"/sys/bus/pci/devices/{address}": (path := f"{path}/{address}") for address in below}
    return Snapshot(files=files, links=links)


@pytest.mark.parametrize(
    ("vendor", "switch", "status"),
    [("0x1022", "0x43c6", "warn"), ("0x1022", "0x148d", "ok"), ("0x1b36", "0x000c", "unknown")],
)
def test_the_chipset_of_amd_is_a_switch_and_ports_of_others_are_not_known(
    vendor: str, switch: str, status: str
) -> None:
    assert result("topology-chipset", board(vendor, switch)).status == status


# What could not be read is no `ok`


def test_a_limit_that_may_not_be_read_is_no_limit_that_is_absent() -> None:
    group = {
        "/sys/fs/cgroup/cpu.stat": "nr_periods 0\nnr_throttled 0\n",
        "/proc/self/status": "Cpus_allowed_list:\t0-7\n",
    }
    denied = {"/sys/fs/cgroup/cpu.max": "permission denied"}
    assert result("cpu-quota", Snapshot(files=group)).status == "ok"
    assert result("cpu-quota", Snapshot(files=group, problems=denied)).status == "unknown"
    conf = {"/etc/nccl.conf": "permission denied"}
    assert result("nccl-peer-to-peer", Snapshot(environment={})).status == "ok"
    assert result("nccl-peer-to-peer", Snapshot(environment={}, problems=conf)).status == "unknown"


@pytest.mark.parametrize("check_id", ["rdma-port-state", "rdma-rate", "rdma-link-downed", "rdma-symbol-errors"])
def test_a_port_that_gives_no_value_is_missing(check_id: str) -> None:
    files = rdma_port("mlx5_0") | rdma_port("mlx5_1")
    assert result(check_id, Snapshot(files=files)).status == "ok"
    silent = {path: text for path, text in files.items() if "mlx5_1" not in path}
    silent["/sys/class/infiniband/mlx5_1/ports/1/sm_lid"] = "0x1"
    assert result(check_id, Snapshot(files=silent)).status == "unknown"


def test_an_interface_without_a_speed_or_a_count_is_missing() -> None:
    base = {"/sys/class/net/eth0/mtu": "1500", "/sys/class/net/eth0/operstate": "up"}
    assert result("net-mtu", Snapshot(files=base)).status == "unknown"
    assert result("net-mtu", Snapshot(files=base | {"/sys/class/net/eth0/speed": "10000"})).status == "ok"
    counts = base | {"/sys/class/net/eth0/carrier_down_count": "0"}
    assert result("net-carrier-losses", Snapshot(files=counts)).status == "ok"
    other = {"/sys/class/net/eth1/mtu": "1500"}
    assert result("net-carrier-losses", Snapshot(files=counts | other)).status == "unknown"


def test_idle_gpus_are_held_back_by_nothing() -> None:
    text = (
        "==============NVSMI LOG==============\nGPU 00000000:01:00.0\n    Utilization\n        GPU : {busy} %\n"
        "    Clocks Event Reasons\n        HW Slowdown : Not Active\n        SW Thermal Slowdown : Not Active\n"
    )
    for check_id in ("gpu-hardware-slowdown", "gpu-software-thermal"):
        assert result(check_id, printed(SMI_QUERY, text.format(busy=0))).status == "info"
        assert result(check_id, printed(SMI_QUERY, text.format(busy=97))).status == "ok"


def test_a_gpu_of_lspci_alone_has_no_guessed_port() -> None:
    assert result("topology-shared-uplink", printed(LSPCI, lspci_gpu("0000:02:00.0"))).status == "unknown"
