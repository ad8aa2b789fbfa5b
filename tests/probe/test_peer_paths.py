"""How a GPU reaches the others of its host, from what the driver says of each pair."""

from __future__ import annotations

import pynvml
import pytest

from flatout.probe.peer_paths import NVLINK, READ, WRITE, slowest_peer_path

DIRECT, BRIDGE = {READ, WRITE}, {READ, WRITE, NVLINK}


class Driver:
    """Knows the abilities of pairs; handles are numbers."""

    def __init__(self, *pairs: set[int]) -> None:
        self._pairs = pairs

    def __getattr__(self, name: str) -> int:
        return int(getattr(pynvml, name))

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, ability: int) -> int:  # noqa: N802 - the driver's name
        abilities = self._pairs[one + other - 1]  # 0-1, 0-2, 1-2
        return pynvml.NVML_P2P_STATUS_OK if ability in abilities else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("pairs", "paths"),
    [
        ((BRIDGE, BRIDGE, BRIDGE), ["nvlink", "nvlink", "nvlink"]),
        ((BRIDGE, DIRECT, DIRECT), ["pcie", "pcie", "pcie"]),
        ((DIRECT, set(), DIRECT), ["host", "pcie", "host"]),
        (({READ}, DIRECT, {WRITE}), ["host", "host", "host"]),
    ],
)
def test_the_slowest_of_its_paths_is_that_of_a_gpu(pairs: tuple[set[int], ...], paths: list[str]) -> None:
    assert [slowest_peer_path(Driver(*pairs), range(3), index) for index in range(3)] == paths


def test_a_gpu_alone_has_no_path() -> None:
    assert slowest_peer_path(Driver(), range(1), 0) is None
