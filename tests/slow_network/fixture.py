"""The fixture `slow_network`: emulated networks that end with the test, or a skip where this machine allows none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cabled_nodes import NoNamespacesError
from tests.slow_network.network import SlowNetwork
from tests.slow_network.network import slow_network as made

MakeNetwork = Callable[..., SlowNetwork]


@pytest.fixture
def slow_network(tmp_path: Path) -> Iterator[MakeNetwork]:
    """Return a function of `num_nodes`, `bits_per_s` and `delay_s` that makes a network; see `network.py`."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("needs iproute2")
    with ExitStack() as networks:

        def make(*, num_nodes: int = 2, bits_per_s: float = 1e9, delay_s: float = 0.0) -> SlowNetwork:
            try:
                return networks.enter_context(
                    made(tmp_path, num_nodes=num_nodes, bits_per_s=bits_per_s, delay_s=delay_s)
                )
            except NoNamespacesError as error:
                pytest.skip(str(error))

        yield make
