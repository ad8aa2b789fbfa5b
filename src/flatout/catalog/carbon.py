"""Look up a grid's or cloud region's average emissions per year, in grams of CO2 equivalent per kWh (`carbon.toml`)."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from pathlib import Path

import msgspec

from flatout.errors import UsageError

_FILE = Path(__file__).with_name("carbon.toml")


class _Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[grid]]` entry of the file."""

    zone: str
    name: str
    aliases: tuple[str, ...]
    g_per_kwh: float


class _Grids(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    year: int
    date: str
    grid: tuple[_Grid, ...]


class GridCarbon(msgspec.Struct, frozen=True, kw_only=True):
    """The emissions per kWh of a grid, averaged over `year`."""

    zone: str
    name: str
    aliases: tuple[str, ...]
    g_per_kwh: float
    year: int
    source: str
    date: str


def grid_carbon(region: str) -> GridCarbon:
    """Return the grid with this code or name, or of this cloud region; case is ignored.

    Raise UsageError with the nearest names if it is unknown.
    """
    grid = _by_name().get(region.strip().casefold())
    if grid is None:
        near = difflib.get_close_matches(region.strip().casefold(), _by_name(), n=3, cutoff=0.5)
        raise UsageError(
            f"there is no grid named `{region}`",
            hint=f"nearest: {', '.join(near)}" if near else "give a country as `FR` or a cloud region as `us-east-1`",
        )
    return grid


@cache
def all_grids() -> tuple[GridCarbon, ...]:
    """Return every grid of the catalogue, in the order of the file."""
    catalogue = msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _Grids)
    return tuple(
        GridCarbon(
            zone=grid.zone,
            name=grid.name,
            aliases=grid.aliases,
            g_per_kwh=grid.g_per_kwh,
            year=catalogue.year,
            source=catalogue.source,
            date=catalogue.date,
        )
        for grid in catalogue.grid
    )


@cache
def _by_name() -> dict[str, GridCarbon]:
    return {name.casefold(): grid for grid in all_grids() for name in (grid.zone, grid.name, *grid.aliases)}
