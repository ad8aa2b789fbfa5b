"""Links and adapters against physics, against the GPUs of the catalogue, and against what PCI device ids must be."""

from __future__ import annotations

from datetime import date

import pytest

from flatout.catalog import all_gpu_facts
from flatout.catalog.links import all_gpu_links, all_nics, all_pcie, nic_by_hca_type
from flatout.doctor.graph import LANE_BYTES_PER_S

# Coding by the specifications: 8b/10b, 128b/130b, and 242 bytes in a FLIT of 256.
CODING = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}


def test_a_lane_carries_its_transfers_less_the_coding() -> None:
    assert [one.generation for one in all_pcie()] == [1, 2, 3, 4, 5, 6]
    for one in all_pcie():
        assert one.lane_gb_per_s == pytest.approx(one.gt_per_s / 8 * CODING[one.generation], rel=1e-3)


def test_doctor_judges_links_by_the_same_lanes() -> None:
    assert {one.gt_per_s: one.bytes_per_s(1) for one in all_pcie()} == pytest.approx(dict(LANE_BYTES_PER_S))


def test_the_links_of_a_gpu_add_up_to_what_its_data_sheet_says() -> None:
    seen = set()
    for link in all_gpu_links():
        gpus = [gpu for gpu in all_gpu_facts() if gpu.name.startswith(link.on)]
        assert gpus, link.on
        for gpu in gpus:
            assert gpu.link_bytes_per_s == 2 * link.num_links * link.link_gb_per_s * 1e9, (gpu.name, link.name)
            seen.add(gpu.name)
    bridged = [gpu.name for gpu in all_gpu_facts() if gpu.link_bytes_per_s and gpu.name not in seen]
    assert all("PCIe" in name or "NVL" in name or name == "MI210" for name in bridged), bridged


# PCI device ids of vendor 15b3, from the table of the kernel's mlx5 driver (drivers/net/ethernet/mellanox/mlx5/core).
IDS = {
    "ConnectX-5": 0x1017,
    "ConnectX-5 Ex": 0x1019,
    "ConnectX-6": 0x101B,
    "ConnectX-6 Dx": 0x101D,
    "ConnectX-7": 0x1021,
    "ConnectX-8": 0x1023,
    "BlueField-2": 0xA2D6,
    "BlueField-3": 0xA2DC,
}


@pytest.mark.parametrize(("name", "device"), IDS.items())
def test_the_type_of_an_mlx5_device_is_its_pci_id(name: str, device: int) -> None:
    found = nic_by_hca_type(f"MT{device}\n")
    assert found is not None
    assert found.name == name


def test_an_unknown_type_is_no_adapter() -> None:
    assert nic_by_hca_type("MT1") is None


def test_a_slot_carries_what_the_adapter_does() -> None:
    lanes = {one.generation: one for one in all_pcie()}
    for nic in all_nics():
        if nic.pcie_generation is not None:
            assert nic.pcie_lanes is not None
            assert lanes[nic.pcie_generation].bytes_per_s(nic.pcie_lanes) * 8 >= nic.gbit_per_s * 1e9, nic.name
        else:
            assert "not published" in nic.note


def test_every_entry_has_a_source_and_a_day() -> None:
    for one in (*all_pcie(), *all_gpu_links(), *all_nics()):
        assert len(one.source) > 20
        assert date.fromisoformat(one.date) >= date(2026, 1, 1)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("V100 SXM2 32GB", "fp16", 125),
        ("A100 SXM 80GB", "bf16", 312),
        ("H100 SXM 80GB", "bf16", 989.4),
        ("H200 SXM 141GB", "bf16", 989.4),
        ("B200 180GB", "bf16", 2250),
        ("GB200 186GB", "bf16", 2500),
        ("MI250 (one die)", "bf16", 181),
        ("MI300X", "bf16", 1307.4),
        ("RTX 4090", "fp16", 165.2),
        ("RTX 5090", "fp16", 209.5),
    ],
)
def test_the_gpus_that_train_most_have_their_dense_peaks(name: str, dtype: str, tflops: float) -> None:
    (gpu,) = [gpu for gpu in all_gpu_facts() if gpu.name == name]
    assert gpu.peak_flops_per_s[dtype] == pytest.approx(tflops * 1e12, rel=1e-3)
    assert gpu.memory_bytes_per_s is not None
    # No product of any size is above 1,000 operations a byte of memory traffic in any GPU of these ten years.
    assert 50 < gpu.peak_flops_per_s[dtype] / gpu.memory_bytes_per_s < 1000
