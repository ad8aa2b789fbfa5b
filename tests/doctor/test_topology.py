"""The graph of devices from each source, its findings, and its drawing; of texts that are cut off, no guess."""

from __future__ import annotations

import pytest
from tests.doctor.samples import HEALTHY_MATRIX, lspci_bridge, lspci_gpu, printed, result, smi, sysfs

from flatout.doctor.graph import topology_of
from flatout.doctor.machine import Machine
from flatout.doctor.parse.cpu_list import cpu_list_text, parse_cpu_list, parse_cpu_mask
from flatout.doctor.parse.topology_matrix import parse_topology_matrix
from flatout.records.snapshot import Output, Snapshot
from flatout.report.doctor_text import topology_text
from flatout.report.terminal import TextStyle

BUS = "/sys/bus/pci/devices"
ROOT = "/sys/devices/pci0000:00"


def sysfs_tree(*, chipset: bool = False, width: str = "16") -> Snapshot:
    """Two GPUs and a NIC behind one switch below one root port, on NUMA node 0."""
    port = "0000:00:1c.0" if chipset else "0000:00:01.0"
    paths = {
        port: (f"{port}", "0x060400", "0x8086"),
        "0000:01:00.0": (f"{port}/0000:01:00.0", "0x060400", "0x1000"),
        "0000:02:00.0": (f"{port}/0000:01:00.0/0000:02:00.0", "0x060400", "0x1000"),
        "0000:02:01.0": (f"{port}/0000:01:00.0/0000:02:01.0", "0x060400", "0x1000"),
        "0000:02:02.0": (f"{port}/0000:01:00.0/0000:02:02.0", "0x060400", "0x1000"),
        "0000:03:00.0": (f"{port}/0000:01:00.0/0000:02:00.0/0000:03:00.0", "0x030200", "0x10de"),
        "0000:04:00.0": (f"{port}/0000:01:00.0/0000:02:01.0/0000:04:00.0", "0x030200", "0x10de"),
        "0000:05:00.0": (f"{port}/0000:01:00.0/0000:02:02.0/0000:05:00.0", "0x020700", "0x15b3"),
    }
    files: dict[str, str] = {}
    for address, (_, kind, vendor) in paths.items():
        lanes = width if address == "0000:03:00.0" else "16"
        files |= sysfs(
            f"{BUS}/{address}",
            **{"class": kind, "vendor": vendor, "device": "0x0001", "numa_node": "0"},
            current_link_width=lanes,
            max_link_width="16",
            current_link_speed="32.0 GT/s PCIe",
            max_link_speed="32.0 GT/s PCIe",
        )
    links = {f"{BUS}/{address}": f"{ROOT}/{path}" for address, (path, _, _) in paths.items()}
    links["/sys/class/infiniband/mlx5_0"] = f"{ROOT}/{paths['0000:05:00.0'][0]}/infiniband/mlx5_0"
    return Snapshot(files=files | {"/proc/cpuinfo": "flags : fpu\n"}, links=links)


def test_sysfs_gives_the_tree_and_the_words_of_the_driver() -> None:
    topology = topology_of(Machine(sysfs_tree()))
    assert topology is not None
    kinds = {node.id: node.kind for node in topology.nodes}
    assert kinds["0000:00:01.0"] == "root_port"
    assert kinds["0000:02:00.0"] == "switch"
    assert kinds["0000:03:00.0"] == "gpu"
    assert {pair.relation for pair in topology.pairs} == {"PIX"}


def test_two_gpus_behind_one_uplink_are_told_with_its_bandwidth() -> None:
    found = result("topology-shared-uplink", sysfs_tree())
    assert (found.status, "0000:03:00.0, 0000:04:00.0" in found.reason) == ("info", True)
    assert "63 GB/s" in found.reason  # 16 lanes of 32 GT/s after line coding


def test_a_gpu_behind_the_chipset_warns() -> None:
    assert result("topology-chipset", sysfs_tree()).status == "ok"
    assert result("topology-chipset", sysfs_tree(chipset=True)).status == "warn"


def test_a_link_at_half_width_warns() -> None:
    assert result("topology-narrow-path", sysfs_tree()).status == "ok"
    found = result("topology-narrow-path", sysfs_tree(width="8"))
    assert (found.status, "x8 of x16" in found.reason) == ("warn", True)


def test_numa_nodes_that_are_not_said_warn_on_a_machine_with_two() -> None:
    assert result("topology-numa-known", sysfs_tree()).status == "ok"
    files = {path: "-1" if path.endswith("numa_node") else text for path, text in sysfs_tree().files.items()}
    nodes = {f"/sys/devices/system/node/node{n}/cpulist": "0-7" for n in (0, 1)}
    assert result("topology-numa-known", Snapshot(files=files | nodes, links=sysfs_tree().links)).status == "warn"
    assert result("topology-numa-known", Snapshot(files=files, links=sysfs_tree().links)).status == "unknown"


def test_the_nearest_nic_of_each_gpu() -> None:
    assert result("topology-nic-distance", printed("nvidia-smi topo -m", HEALTHY_MATRIX)).status == "ok"
    assert result("topology-nic-share", printed("nvidia-smi topo -m", HEALTHY_MATRIX)).status == "ok"
    far = HEALTHY_MATRIX.replace("PIX", "SYS").replace("PXB", "SYS")
    assert result("topology-nic-distance", printed("nvidia-smi topo -m", far)).status == "warn"
    virtual = Snapshot(
        outputs={"nvidia-smi topo -m": Output(text=far)}, files={"/proc/cpuinfo": "flags : fpu hypervisor\n"}
    )
    assert result("topology-nic-distance", virtual).status == "unknown"
    uneven = HEALTHY_MATRIX.replace("SYS\tPIX\t32", "PIX\tSYS\t32").replace("PXB\tSYS\tSYS\t X ", "PXB\tPIX\tSYS\t X ")
    assert result("topology-nic-share", printed("nvidia-smi topo -m", uneven)).status != "ok"


def test_cpus_of_the_process_must_be_near_its_gpu() -> None:
    def bound(cpus: str, **variables: str) -> Snapshot:
        files = {"/proc/self/status": f"Cpus_allowed_list:\t{cpus}\n"}
        return Snapshot(outputs={"nvidia-smi topo -m": Output(text=HEALTHY_MATRIX)}, files=files, environment=variables)

    assert result("topology-cpu-binding", bound("0-63")).status == "ok"
    assert result("topology-cpu-binding", bound("0-31")).status == "warn"
    assert result("topology-cpu-binding", bound("0-31", LOCAL_RANK="1")).status == "ok"
    assert result("topology-cpu-binding", bound("0-31", LOCAL_RANK="2")).status == "warn"


def test_lspci_gives_the_tree_and_of_an_excerpt_no_root_is_guessed() -> None:
    whole = (
        lspci_bridge("0000:00:01.0", "01", root=True)
        + lspci_bridge("0000:01:00.0", "02")
        + lspci_gpu("0000:02:00.0")
        + lspci_gpu("0000:02:01.0", width="x8")
    )
    assert "0000:02:00.0, 0000:02:01.0" in result("topology-shared-uplink", printed("lspci -vvv", whole)).reason
    assert "0000:02:01.0 (gpu): x8 of x16" in result("topology-narrow-path", printed("lspci -vvv", whole)).reason
    excerpt = lspci_bridge("0000:01:00.0", "02") + lspci_gpu("0000:02:00.0")
    assert result("topology-shared-uplink", printed("lspci -vvv", excerpt)).status == "unknown"


XML = """<system version="1">
  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:0a:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0b:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:0c:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="{}" arch="x86_64" vendor="GenuineIntel"/>
</system>
"""


def test_masks_of_a_topology_file_must_differ_and_fit_the_kernel() -> None:
    good, same = XML.format("ffff0000"), XML.format("0000ffff")
    assert result("topology-nccl-file", printed("NCCL topology XML", good)).status == "ok"
    assert result("topology-nccl-file", printed("NCCL topology XML", same)).status == "warn"
    swapped = Snapshot(
        outputs={"NCCL topology XML": Output(text=good)},
        files={"/sys/devices/system/node/node0/cpulist": "16-31"},
    )
    assert result("topology-nccl-file", swapped).status == "warn"
    for cut in range(len(good) - 2):
        assert result("topology-nccl-file", printed("NCCL topology XML", good[:cut])).status == "unknown"


def test_a_virtual_machine_with_many_gpus_needs_a_topology_file() -> None:
    base = {"/proc/cpuinfo": "flags : fpu hypervisor\n", "/sys/class/infiniband/mlx5_0/fw_ver": "28"}
    absent = {"/var/run/nvidia-topologyd/virtualTopology.xml": "no such file or directory"}
    inside = Snapshot(files=base, outputs=smi().outputs, environment={}, problems=absent)
    assert result("topology-nccl-file-missing", inside).status == "warn"
    given = {"NCCL_TOPO_FILE": "/opt/topo.xml"}
    there = Snapshot(files=base | {"/opt/topo.xml": "<system/>"}, outputs=smi().outputs, environment=given)
    assert result("topology-nccl-file-missing", there).status == "ok"


def test_a_matrix_that_is_cut_off_anywhere_never_contradicts_the_whole() -> None:
    whole = parse_topology_matrix(HEALTHY_MATRIX)
    for end in range(40, len(HEALTHY_MATRIX)):
        try:
            part = parse_topology_matrix(HEALTHY_MATRIX[:end])
        except ValueError:
            continue
        for pair, cell in part.cells.items():
            assert whole.cells[pair] == cell, (end, pair)
        for device, cpus in part.cpus.items():
            assert whole.cpus[device] == cpus, (end, device)


def test_columns_that_have_grown_together_are_left_out() -> None:
    glued = HEALTHY_MATRIX.replace("0-31\t0\tN/A", "0-310N/A")
    matrix = parse_topology_matrix(glued)
    assert "GPU0" not in matrix.cpus
    assert matrix.cells["GPU0", "GPU1"] == "NV18"


@pytest.mark.parametrize("text", ["0-3,8", "0", "1,3,5", "0-1,4-7"])
def test_cpu_lists_round_trip(text: str) -> None:
    assert cpu_list_text(parse_cpu_list(text)) == text


def test_cpu_masks() -> None:
    assert parse_cpu_mask("00000001,80000000") == {31, 32}
    assert parse_cpu_mask("ff") == set(range(8))


def test_the_drawing_shows_what_is_behind_what_in_unicode_and_in_ascii() -> None:
    topology = topology_of(Machine(sysfs_tree(width="8")))
    assert topology is not None
    drawn = "\n".join(topology_text(topology, TextStyle(width=100)))
    assert "      │  └─ 0000:03:00.0 gpu x8 of x16 32 GT/s 10de:0001" in drawn
    plain = "\n".join(topology_text(topology, TextStyle(width=100, has_unicode=False)))
    assert plain.isascii()
