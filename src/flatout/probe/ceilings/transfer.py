"""Host memory to a GPU and back, from pinned and from pageable memory: each GPU alone, and all of a host at once.

All GPUs together are slower than one GPU alone because of shared resources: a PCIe switch's uplink, a CPU socket's
memory. The PCIe link is read while copies from pinned memory run, because copies from pageable memory leave it idle in
between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from flatout.probe.ceilings.benchmark import Benchmark, Who
from flatout.probe.ceilings.link import link_under_load, pci_address, read_link

SIZE_BYTES = 256 << 20


def torch_benchmarks(torch: Any, device: Any) -> Iterator[Benchmark]:
    """Yield the transfers between host and GPU; none without a GPU."""
    made: dict[str, Any] = {}
    address = pci_address(torch, device)

    def buffers(kind: str) -> tuple[Any, Any]:
        if "device" not in made:
            made["device"] = torch.empty(SIZE_BYTES // 4, dtype=torch.int32, device=device)
        if kind not in made:
            made[kind] = torch.arange(SIZE_BYTES // 4, dtype=torch.int32)
            if kind == "pinned":
                made[kind] = made[kind].pin_memory()
        return made[kind], made["device"]

    def benchmark(direction: str, kind: str, who: Who) -> Benchmark:
        def call() -> None:
            host, gpu = buffers(kind)
            if direction == "host_to_device":
                gpu.copy_(host, non_blocking=kind == "pinned")
            else:
                host.copy_(gpu, non_blocking=kind == "pinned")

        def check() -> str | None:
            host, gpu = buffers(kind)
            wanted = torch.arange(SIZE_BYTES // 4, dtype=torch.int32)
            (gpu if direction == "host_to_device" else host).fill_(-1)
            (host if direction == "host_to_device" else gpu).copy_(wanted)
            call()
            torch.cuda.synchronize(device)
            arrived = gpu.cpu() if direction == "host_to_device" else host
            if kind == "pinned" and address is not None:
                stream = torch.cuda.current_stream(device)
                link = link_under_load(lambda: read_link(address), call, lambda: not stream.query())
                torch.cuda.synchronize(device)
                labels["pcie"] = None if link is None else msgspec.to_builtins(link)
            return None if torch.equal(arrived, wanted) else "the received data differs from what was sent"

        labels: dict[str, Any] = {
            "size": SIZE_BYTES,
            "backend": "torch",
            "note": "one GPU at a time" if who == "turns" else "all GPUs at once",
        }
        return Benchmark(
            name=f"{direction}_{kind}",
            unit="B/s",
            work=float(SIZE_BYTES),
            call=call,
            check=check,
            checked="every element",
            who=who,
            sync=lambda: torch.cuda.synchronize(device),
            labels=labels,
        )

    ways: tuple[Who, ...] = ("turns", "each")
    for who in ways:
        for kind in ("pinned", "pageable"):
            for direction in ("host_to_device", "device_to_host"):
                yield benchmark(direction, kind, who)
