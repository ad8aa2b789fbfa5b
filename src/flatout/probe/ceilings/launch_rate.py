"""The number of small operations per second that one thread can start: kernels on a GPU, operator calls on a CPU.

A step of many small kernels cannot be faster than this. Each call adds one to a counter, which must equal the number
of calls at the end.
"""

from __future__ import annotations

from typing import Any

from flatout.probe.ceilings.benchmark import Benchmark

_CALLS = 200


def torch_benchmark(torch: Any, device: Any) -> Benchmark:
    is_gpu = device.type == "cuda"
    made: list[Any] = []  # the counter, created when first needed

    def call() -> None:
        counter = made[0]
        for _ in range(_CALLS):
            counter.add_(1)

    def check() -> str | None:
        counter = torch.zeros((), dtype=torch.int64, device=device)
        made[:] = [counter]
        call()
        counted = int(counter.item())
        return None if counted == _CALLS else f"{counted} of {_CALLS} calls were carried out"

    return Benchmark(
        name="kernel_launch" if is_gpu else "operator_dispatch",
        unit="1/s",
        work=float(_CALLS),
        call=call,
        check=check,
        checked="a count of the calls",
        who="each" if is_gpu else "first",
        sync=(lambda: torch.cuda.synchronize(device)) if is_gpu else (lambda: None),
        labels={"backend": "torch", "threads": 1},
    )
