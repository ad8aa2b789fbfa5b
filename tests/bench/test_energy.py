"""Operations per joule over seconds, against a GPU whose power, rate and counter the test chooses."""

from __future__ import annotations

import pynvml
import pytest
from tests.bench.test_summary import ceilings, product
from tests.watch.nvml import FakeNvml

from flatout.probe.ceilings.benchmark import Benchmark
from flatout.probe.ceilings.energy import (
    LEAST_S,
    NO_POWER,
    SECONDS,
    SETTLING_S,
    STANDS_STILL,
    energy_counter,
    note_power,
    sustained,
)
from flatout.probe.ceilings.raw import RawBenchmark
from flatout.report.ceilings_text import ceilings_text
from flatout.report.terminal import TextStyle

FLOP = 1e12


class Gpu:
    """Multiplies in 2 ms, draws 900 W for half a second and then 500 W; its counter advances each 100 ms."""

    def __init__(self, *, advances: bool = True) -> None:
        self.now = 0.0
        self.num_calls = 0
        self.advances = advances

    def call(self) -> None:
        self.now += 0.002
        self.num_calls += 1

    def joules(self) -> float:
        seen = int(self.now * 10 + 1e-9) / 10 if self.advances else 0.0
        return 900 * min(seen, SETTLING_S) + 500 * max(seen - SETTLING_S, 0.0)

    def matmul(self, dtype: str = "bf16", work: float = FLOP, name: str = "matmul") -> Benchmark:
        labels = {"dtype": dtype, "shape": (8, 8, 8)}
        return Benchmark(
            name=name, unit="FLOP/s", work=work, call=self.call, check=lambda: None, checked="", labels=labels
        )


def test_the_power_is_that_of_the_settled_seconds_and_of_the_operations_in_them() -> None:
    gpu = Gpu()
    measured = sustained(gpu.matmul(), gpu.joules, clock=lambda: gpu.now)
    assert measured is not None
    # A call per 2 ms is 5e14 FLOP/s; at 500 W that is 1e12 per watt. Batches of 16 ms meet the advances within 2 %.
    assert measured.watts == pytest.approx(500, rel=0.02)
    assert measured.rate_per_w == pytest.approx(FLOP, rel=0.02)
    assert SECONDS + SETTLING_S <= gpu.now < SECONDS + SETTLING_S + 0.5


class SlowToRead(Gpu):
    """Works on what was queued while its counter is read, which takes 5 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.free_at = 0.0

    def call(self) -> None:
        self.free_at = max(self.free_at, self.now) + 0.006

    def sync(self) -> None:
        self.now = max(self.now, self.free_at)

    def joules(self) -> float:
        self.now += 0.005
        return super().joules()


def test_the_gpu_works_while_its_counter_is_read() -> None:
    gpu = SlowToRead()
    benchmark = gpu.matmul()
    benchmark.sync = gpu.sync
    measured = sustained(benchmark, gpu.joules, clock=lambda: gpu.now)
    assert measured is not None
    assert measured.rate_per_w * measured.watts == pytest.approx(FLOP / 0.006, rel=0.03)


def test_a_counter_that_does_not_advance_ends_it() -> None:
    gpu = Gpu(advances=False)
    assert sustained(gpu.matmul(), gpu.joules, clock=lambda: gpu.now) is None
    assert gpu.now < 10 and sustained(gpu.matmul(), lambda: None, clock=lambda: gpu.now) is None


def test_the_largest_multiplication_of_each_type_is_measured() -> None:
    gpu = Gpu()
    benchmarks = [
        gpu.matmul(work=1.0),
        gpu.matmul(work=FLOP),
        gpu.matmul("fp32", work=2.0),
        gpu.matmul("fp16", work=3.0),
        gpu.matmul(name="memory_copy"),
    ]
    found = [RawBenchmark(name=one.name, unit=one.unit, work=one.work, checked="") for one in benchmarks]
    found[3].wrong = "an entry is wrong"
    assert note_power(benchmarks, found, gpu.joules, time_s=9, clock=lambda: gpu.now) == {}
    assert [bool(one.labels.get("power")) for one in found] == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("time_s", "num_measured", "seconds"),
    [
        (1.49, 0, 0),
        (1.51, 1, LEAST_S),
        (4.51, 3, LEAST_S),
        (7.5, 5, LEAST_S),
        (10, 5, 1.5),
        (12.5, 5, SECONDS),
        (99, 5, SECONDS),
    ],
)
def test_types_share_the_time_and_say_which_had_none(time_s: float, num_measured: int, seconds: float) -> None:
    gpu = Gpu()
    benchmarks = [gpu.matmul(dtype) for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8")]
    found = [RawBenchmark(name=one.name, unit=one.unit, work=one.work, checked="") for one in benchmarks]
    missing = note_power(benchmarks, found, gpu.joules, time_s=time_s, clock=lambda: gpu.now)
    took = [one.labels["power"]["seconds"] for one in found if "power" in one.labels]
    # The counter advances each 100 ms, and is looked at after batches of some 10 ms.
    assert took == pytest.approx([seconds] * num_measured, abs=0.13) and min(took, default=seconds) >= seconds
    in_order = ["bf16", "fp8", "fp16", "tf32", "fp32"]
    assert list(missing) == [f"matmul {dtype}, FLOP/s per W" for dtype in in_order[num_measured:]]
    assert all("raise --time" in why for why in missing.values())


@pytest.mark.parametrize("is_known", [True, False])
def test_without_power_each_type_says_so_and_no_time_is_lost(is_known: bool) -> None:
    gpu = Gpu(advances=False)
    benchmarks = [gpu.matmul(dtype) for dtype in ("fp32", "bf16")]
    found = [RawBenchmark(name=one.name, unit=one.unit, work=one.work, checked="") for one in benchmarks]
    joules = gpu.joules if is_known else None
    missing = note_power(benchmarks, found, joules, time_s=9, clock=lambda: gpu.now)
    assert list(missing) == ["matmul bf16, FLOP/s per W", "matmul fp32, FLOP/s per W"]
    assert set(missing.values()) == {STANDS_STILL if is_known else NO_POWER}
    assert gpu.now == pytest.approx(3 * SECONDS if is_known else 0, abs=0.1)


def test_the_report_has_a_line_per_type_with_the_median_of_the_gpus() -> None:
    ranks = []
    for watts in (600.0, 700.0, 640.0):
        powered = product(0.001)
        powered.labels["power"] = {"watts": watts, "rate_per_w": 1e12 * watts / 640, "seconds": 1.5}
        ranks.append([powered, product(0.001, size=8192)])
    found = ceilings(*ranks)
    assert [one.power_w for one in found.measurements] == [600, 700, 640, None, None, None]
    text = ceilings_text(found, style=TextStyle())
    assert "matmul bf16: 1.00 TFLOP/s per W at 640 W, over 1.50 s" in text.splitlines()
    assert "per W" not in ceilings_text(ceilings([product(0.001)]), style=TextStyle())


def test_the_counter_is_that_of_the_gpu_at_the_address() -> None:
    class OneGpu(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            pass

        def nvmlDeviceGetHandleByPciBusId(self, address: str) -> dict[str, object]:  # noqa: N802
            if address != "0000:1b:00.0":
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return {"nvmlDeviceGetTotalEnergyConsumption": 4_500}

    counter = energy_counter("0000:1b:00.0", OneGpu())
    assert counter is not None and counter() == 4.5
    assert energy_counter("0000:2b:00.0", OneGpu()) is None and energy_counter(None) is None


def test_without_an_energy_counter_the_power_is_added_up() -> None:
    gpu = Gpu()

    class OldGpu(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            pass

        def nvmlDeviceGetHandleByPciBusId(self, address: str) -> dict[str, object]:  # noqa: N802
            return {}

        def nvmlDeviceGetPowerUsage(self, _: object) -> int:  # noqa: N802
            return 900_000 if gpu.now < SETTLING_S / 2 else 250_000

    counter = energy_counter("0000:1b:00.0", OldGpu(), clock=lambda: gpu.now)
    assert counter is not None
    measured = sustained(gpu.matmul(), counter, seconds=LEAST_S, clock=lambda: gpu.now)
    assert measured is not None
    assert measured.watts == pytest.approx(250) and measured.rate_per_w == pytest.approx(FLOP / 0.002 / 250)
    assert measured.seconds == pytest.approx(LEAST_S, abs=0.02)
    assert energy_counter("0000:1b:00.0", NoPower()) is None


class NoPower(FakeNvml):
    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> dict[str, object]:  # noqa: N802
        return {}
