"""Find the full hour at which a job of known duration emits least. In: the grid's hours. Out: `CarbonAdvice`.

A job draws the same power all the time, so what counts is the mean emission per kWh over its hours. The future is
assumed to be as the file says: a forecast's error is unknown here.
"""

from __future__ import annotations

import math

from flatout.errors import InputError, UsageError
from flatout.records.carbon import CarbonAdvice, CarbonHours, CarbonStart

W_PER_KW, G_PER_KG = 1000.0, 1000.0


def carbon_advice(
    hours: CarbonHours,
    *,
    path: str,
    duration_h: float,
    now: int,
    most_delay_h: int | None = None,
    power_w: float | None = None,
) -> CarbonAdvice:
    """Compare the starts from `now`, the position of an hour in the file, to `most_delay_h` later.

    None: as late as the file allows, or within a day. Raises InputError if the file ends before the job.
    """
    num_hours = len(hours.g_per_kwh)
    last_delay = 23 if hours.is_daily else num_hours - now - math.ceil(duration_h)
    if last_delay < 0:
        raise InputError(
            f"`{path}` must have the hours of the whole job, {duration_h:g} h from {hours.hours[now]},"
            f" but ends after {num_hours - now} h",
            hint="add the hours that follow, or pass a shorter duration",
        )
    if most_delay_h is not None and most_delay_h > last_delay and not hours.is_daily:
        raise UsageError(
            f"the latest start must be at most {last_delay} h from now, as `{path}` ends then, but is {most_delay_h} h",
            hint="add the hours that follow to the file",
        )
    most = last_delay if most_delay_h is None else most_delay_h
    means = [_mean(hours, now + delay, duration_h) for delay in range(most + 1)]
    starts = tuple(_start(hours, now, delay, means, duration_h, power_w) for delay in range(most + 1))
    return CarbonAdvice(
        path=path,
        duration_h=duration_h,
        most_delay_h=most,
        now=starts[0],
        best=min(starts, key=lambda start: (start.g_per_kwh, start.delay_h)),
        starts=starts,
        power_w=power_w,
    )


def _mean(hours: CarbonHours, first: int, duration_h: float) -> float:
    """Return the mean emission per kWh of a job that begins at the full hour `first`."""
    num_full = math.floor(duration_h)
    amounts = hours.g_per_kwh
    total = sum(amounts[(first + hour) % len(amounts)] for hour in range(num_full))
    rest_h = duration_h - num_full
    if rest_h:
        total += rest_h * amounts[(first + num_full) % len(amounts)]
    return total / duration_h


def _start(
    hours: CarbonHours, now: int, delay: int, means: list[float], duration_h: float, power_w: float | None
) -> CarbonStart:
    mean = means[delay]
    kwh = None if power_w is None else power_w / W_PER_KW * duration_h
    return CarbonStart(
        hour=hours.hours[(now + delay) % len(hours.hours)],
        delay_h=delay,
        g_per_kwh=mean,
        less=1 - mean / means[0] if means[0] else 0.0,
        kg_co2=None if kwh is None else kwh * mean / G_PER_KG,
    )
