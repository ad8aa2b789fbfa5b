"""Clusters by name and from TOML files: where NVLink ends, and GPUs that the catalogue does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.plan.clusters import cluster

CASES = Path(__file__).parent.parent / "data" / "plan_clusters"


def of_text(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("file", "domain"), [("n1.toml", 1), ("n4.toml", 4), ("n4d4.toml", 4)])
def test_nvlink_ends_with_the_node(file: str, domain: int) -> None:
    assert cluster(str(CASES / file))[0].nvlink_domain == domain


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ('gpu = "h100"\nnum_gpus = 64\n', 8),
        ('gpu = "h100"\nnum_gpus = 64\ngpus_per_node = 2\n', 2),
        ('gpu = "h100"\nnum_gpus = 64\ngpus_per_node = 2\nnvlink_domain = 8\n', 8),  # what the file says counts
        ('gpu = "v100"\nnum_gpus = 64\ngpus_per_node = 16\n', 16),  # DGX-2
        ('gpu = "gb200"\nnum_gpus = 144\n', 72),
        ('gpu = "gb200"\nnum_gpus = 144\ngpus_per_node = 2\n', 72),  # NVL72 spans nodes
    ],
)
def test_the_domain_of_a_file(text: str, domain: int, tmp_path: Path) -> None:
    assert cluster(str(of_text(tmp_path, text)))[0].nvlink_domain == domain


@pytest.mark.parametrize("name", ["mi300x8", "mi300xx8", "MI300X8"])
def test_a_system_whose_name_ends_in_x_keeps_it(name: str) -> None:
    found = cluster(name)[0]
    assert (found.gpu, found.num_gpus) == ("MI300X", 8)


@pytest.mark.parametrize(
    ("name", "link_gb_per_s", "domain", "memory_gib"),
    [
        ("h800x16", 200, 8, 80),
        ("h20x16", 450, 8, 96),
        ("gh200x16", 450, 1, 96),
        ("l40sx16", 25, 8, 48),
        ("rtx4090x8", 12, 8, 24),
        ("rtx5090x8", 25, 8, 32),
    ],
)
def test_more_cards_by_name(name: str, link_gb_per_s: float, domain: int, memory_gib: int) -> None:
    found = cluster(name)[0]
    assert (found.link_bytes_per_s, found.nvlink_domain) == (link_gb_per_s * 1e9, domain)
    assert found.memory_bytes == memory_gib << 30


GAUDI = """gpu = "Gaudi 3"
num_gpus = 64
gpus_per_node = 8
memory_gib = 128
memory_gb_per_s = 3700
link_gb_per_s = 262
nic_gbit_per_s = 4800
[peak_tflops]
bf16 = 1678
fp8 = 1678
"""


def test_any_vendors_card_by_its_numbers(tmp_path: Path) -> None:
    found, shares = cluster(str(of_text(tmp_path, GAUDI)))
    assert (found.gpu, found.num_gpus, found.nvlink_domain) == ("Gaudi 3", 64, 8)
    assert found.peak_flops_per_s == {"bf16": 1678e12, "fp8": 1678e12}
    assert (found.memory_bytes, found.memory_bytes_per_s) == (128 << 30, 3.7e12)
    assert (found.link_bytes_per_s, found.nic_bytes_per_s) == (262e9, 75e9)
    assert not shares


@pytest.mark.parametrize("name", ["memory_gib", "memory_gb_per_s", "link_gb_per_s", "gpus_per_node", "nic_gbit_per_s"])
def test_a_card_without_one_of_its_numbers_is_refused(name: str, tmp_path: Path) -> None:
    text = "\n".join(line for line in GAUDI.splitlines() if not line.startswith(name))
    with pytest.raises(InputError, match=f"lacks {name}$"):
        cluster(str(of_text(tmp_path, text)))


@pytest.mark.parametrize("peaks", ["fp8 = 1678", "bf16 = 1678\nint4 = 3000"])
def test_peaks_of_other_types_are_refused(peaks: str, tmp_path: Path) -> None:
    text = GAUDI.partition("[peak_tflops]")[0] + "[peak_tflops]\n" + peaks
    with pytest.raises(InputError, match="must have fp16 or bf16"):
        cluster(str(of_text(tmp_path, text)))


def test_an_unknown_card_without_peaks_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="in the catalogue") as error:
        cluster(str(of_text(tmp_path, 'gpu = "Gaudi 3"\nnum_gpus = 64\n')))
    assert "peak_tflops" in error.value.hint
