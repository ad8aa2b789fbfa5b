from __future__ import annotations

from pathlib import Path

import pytest
from tests.change.jobs import facts

from flatout.change.transport import with_transport
from flatout.records.recording import GpuUse, HostUse


def host(**gpu: object) -> HostUse:
    return HostUse(hostname="host", num_samples=1, cores_allowed=8.0, gpus=(GpuUse(index=0, **gpu),))  # type: ignore[arg-type]


def host_of(*paths: str | None) -> HostUse:
    gpus = tuple(GpuUse(index=index, peer_path=path) for index, path in enumerate(paths))
    return HostUse(hostname="host", num_samples=1, cores_allowed=8.0, gpus=gpus)


@pytest.fixture(params=["absent", "empty", "there"])
def infiniband(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "infiniband"
    if request.param != "absent":
        folder.mkdir()
    if request.param == "there":
        (folder / "mlx5_0").touch()
    return folder


def transport(infiniband: Path, hosts: list[HostUse] | None = None, **known: object) -> str | None:
    return with_transport(facts(**known), hosts or [], infiniband=infiniband).transport


def test_gpus_of_one_host_with_nvlink_use_it(infiniband: Path) -> None:
    assert transport(infiniband, [host(nvlink_sent_bytes_per_s=0.0)]) == "nvlink"


def test_without_nvlink_one_host_may_use_several_ways_so_none_is_told(infiniband: Path) -> None:
    assert transport(infiniband, [host()]) is None


def test_one_host_with_nvlink_turned_off_uses_shared_memory(infiniband: Path) -> None:
    off = {"NCCL_P2P_DISABLE": "1"}
    assert transport(infiniband, [host(nvlink_sent_bytes_per_s=0.0)], environment=off) == "shared_memory"


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_sockets_where_all_else_is_turned_off(infiniband: Path, num_hosts: int) -> None:
    off = dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"), "1")
    assert transport(infiniband, num_hosts=num_hosts, environment=off) == "socket"


def test_a_variable_that_is_set_to_0_turns_nothing_off(infiniband: Path) -> None:
    found = transport(infiniband, [host(nvlink_sent_bytes_per_s=0.0)], environment={"NCCL_P2P_DISABLE": "0"})
    assert found == "nvlink"


def test_several_hosts_use_infiniband_where_there_is_any(infiniband: Path) -> None:
    has_any = infiniband.is_dir() and any(infiniband.iterdir())
    assert transport(infiniband, num_hosts=2) == ("infiniband" if has_any else "socket")
    assert transport(infiniband, num_hosts=2, environment={"NCCL_NET": "Socket"}) == "socket"


@pytest.mark.parametrize("known", [{"backend": "gloo"}, {"backend": None}, {"num_hosts": None}])
def test_what_is_not_known_stays_unknown(infiniband: Path, known: dict[str, object]) -> None:
    assert transport(infiniband, [host(nvlink_sent_bytes_per_s=0.0)], **known) is None


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("pcie", "pcie"), "pcie"),
        (("nvlink", "nvlink"), "nvlink"),
        (("nvlink", "pcie", "nvlink", "pcie"), "pcie"),  # pairs with a bridge: the ring crosses PCIe
        (("pcie", "host"), "shared_memory"),
        (("nvlink", "host"), "shared_memory"),
        (("pcie", None), None),
        ((None, None), None),
    ],
)
def test_the_slowest_path_between_the_gpus_of_one_host_counts(
    infiniband: Path, paths: tuple[str | None, ...], expected: str | None
) -> None:
    assert transport(infiniband, [host_of(*paths)]) == expected


def test_without_a_direct_path_and_without_shared_memory_the_network_is_used(infiniband: Path) -> None:
    off = {"NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    assert transport(infiniband, [host_of("host", "host")], environment=off) == "socket"


def test_with_a_level_set_by_hand_pcie_is_uncertain(infiniband: Path) -> None:
    assert transport(infiniband, [host_of("pcie", "pcie")], environment={"NCCL_P2P_LEVEL": "PXB"}) is None
    assert transport(infiniband, [host_of("nvlink", "nvlink")], environment={"NCCL_P2P_LEVEL": "NVL"}) == "nvlink"
