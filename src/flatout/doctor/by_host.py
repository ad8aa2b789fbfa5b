"""Values of the hosts in a log: the distinct values, and all values with their hosts' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flatout.doctor.check import named


def distinct(by_host: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the distinct values of all hosts."""
    return sorted(set().union(*by_host.values()))


def host_name(host: str | None) -> str:
    return host or "?"


def values_by_host(by_host: Mapping[str, Iterable[str]]) -> str:
    """Return `node-a: mlx5_0, mlx5_1, node-b: mlx5_0`."""
    return named(f"{host_name(host)}: {', '.join(values)}" for host, values in by_host.items())
