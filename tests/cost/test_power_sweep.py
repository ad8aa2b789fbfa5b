"""A curve measured at several power limits, on a stand-in for NVML whose limits and energy the test knows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.run.test_adapt_power import FIRST_W, LEAST_W, LimitedGpus

from flatout.errors import InputError, UsageError
from flatout.launch import ExitStatus, run_local
from flatout.power_sweep_pipeline import SweepRequest, planned_limits, sweep
from flatout.probe.power_limits import PowerLimitError

COMMAND = ("python", "train.py")


def launcher(gpus: LimitedGpus, ran_at: list[float], code: int = 0) -> Callable[..., ExitStatus]:
    """Return a launch that uses as much energy as the limits allow for as long as a look takes."""

    def launch(command: Sequence[str], environment: Mapping[str, str], *, watch: Callable[[int], Any]) -> ExitStatus:
        assert command == COMMAND and "FLATOUT_HEARTBEAT" in environment
        ran_at.append(gpus.limits_mw[0] / 1000)
        gpus.energy_mj = [energy + limit / 10 for energy, limit in zip(gpus.energy_mj, gpus.limits_mw, strict=True)]
        watch(4711)
        return ExitStatus(code=code, signal=None, start_unix_s=0.0, end_unix_s=1.0)

    return launch


def test_limits_are_measured_there_and_back_and_put_back() -> None:
    gpus, ran_at = LimitedGpus(), list[float]()
    request = SweepRequest(command=COMMAND, limits_w=(500, 700, 300))
    samples = sweep(request, gpus.limits(), os.environ, launch=launcher(gpus, ran_at))
    assert ran_at == [700, 500, 300, 300, 500, 700] == [sample.limit_w for sample in samples]
    # Each run used a tenth of a second's energy at the limits of both GPUs.
    assert [sample.time_s * sample.power_w for sample in samples] == pytest.approx(
        [0.2 * limit for limit in ran_at], rel=1e-6
    )
    assert gpus.limits_mw == [700_000, 700_000]


def test_a_command_that_fails_ends_the_sweep_and_the_limits_are_back() -> None:
    gpus = LimitedGpus()
    with pytest.raises(InputError, match="must end with code 0 at each limit, but ended with 3 at 700 W"):
        sweep(SweepRequest(command=COMMAND), gpus.limits(), os.environ, launch=launcher(gpus, [], code=3))
    assert gpus.limits_mw == [700_000, 700_000] and gpus.sets


def test_what_may_not_be_set_and_what_has_no_counter_is_said() -> None:
    gpus = LimitedGpus(may_set=False)
    with pytest.raises(PowerLimitError, match="cannot be set to 700 W"):
        sweep(SweepRequest(command=COMMAND), gpus.limits(), os.environ, launch=launcher(gpus, []))
    gpus = LimitedGpus(has_energy=False)
    with pytest.raises(InputError, match="needs the energy counters"):
        sweep(SweepRequest(command=COMMAND), gpus.limits(), os.environ, launch=launcher(gpus, []))


def test_limits_are_those_that_the_gpus_accept() -> None:
    own = LimitedGpus().limits().read()
    assert planned_limits(SweepRequest(command=COMMAND), own) == (700, 630, 560, 490, 420, 350)
    for limits, problem in (((LEAST_W - 1, 500), "from 200 to 700 W"), ((500, FIRST_W + 1), "from 200 to 700 W")):
        with pytest.raises(UsageError, match=problem):
            planned_limits(SweepRequest(command=COMMAND, limits_w=limits), own)
    with pytest.raises(UsageError, match="two or more"):
        planned_limits(SweepRequest(command=COMMAND, limits_w=(500, 500)), own)
    with pytest.raises(InputError, match="NVML shows none"):
        planned_limits(SweepRequest(command=COMMAND), [])


def test_a_real_command_is_started_and_timed(tmp_path: Path) -> None:
    gpus = LimitedGpus(1)
    environment = {**os.environ, "SWEPT": str(tmp_path / "runs")}
    script = "import os, time; open(os.environ['SWEPT'], 'a').write('x'); time.sleep(0.25)"
    request = SweepRequest(command=(sys.executable, "-S", "-c", script), limits_w=(700, 350))

    def launch(*arguments: Any, **options: Any) -> ExitStatus:
        ended = run_local(*arguments, **options)
        gpus.energy_mj[0] += gpus.limits_mw[0]  # a second's energy
        return ended

    samples = sweep(request, gpus.limits(), environment, launch=launch)
    assert (tmp_path / "runs").read_text() == "xxxx"
    assert [sample.time_s * sample.power_w for sample in samples] == pytest.approx([700, 350, 350, 700], rel=1e-6)
    assert all(0.25 <= sample.time_s < 5 for sample in samples)
