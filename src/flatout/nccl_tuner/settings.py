"""The ways to apply what was measured: variables, options of a communicator, and the tuner plugin; each checked.

In: settings and a table. Out: the variables of a job, or one line that says why a setting must not be used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from flatout.inside.protocol import Variable
from flatout.records.collective_table import ALGORITHMS, MAX_CHANNELS

# NCCL's names. Each supports the algorithms that stand after it.
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring", "pat", "nvls", "collnet_direct"),
    "reduce_scatter": ("ring", "pat", "nvls", "collnet_direct"),
    "all_reduce": ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"),
}
MIN_NCCL_FOR_FUNCTIONS = (2, 24)  # before, NCCL_ALGO is one list for all collectives
_NCCL_NAMES = {
    "tree": "Tree",
    "ring": "Ring",
    "collnet_direct": "CollnetDirect",
    "collnet_chain": "CollnetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
}


def options_problem(min_ctas: int | None, max_ctas: int | None) -> str | None:
    """Say why these options of a communicator must not be used; None if they can be."""
    if min_ctas is None and max_ctas is None:
        return None
    if min_ctas is None or max_ctas is None:
        alone = "min_ctas" if max_ctas is None else "max_ctas"
        return f"{alone} alone is refused by NCCL when it makes the communicator: set min_ctas and max_ctas together"
    if not 1 <= min_ctas <= max_ctas <= MAX_CHANNELS:
        return (
            f"min_ctas and max_ctas must be from 1 to {MAX_CHANNELS}, in this order, but are {min_ctas} and {max_ctas}"
        )
    return None


def excluding_algorithms(excluded: Mapping[str, Collection[str]]) -> str:
    """Return the value of NCCL_ALGO that excludes algorithms of some collectives, and changes nothing for the others.

    Since NCCL 2.31, a value that names some collectives leaves the others without any algorithm, so this one names all
    five: for the others it excludes an algorithm that they do not support anyway. Raises ValueError if nothing would
    remain.
    """
    items = []
    for collective, supported in FUNCTIONS.items():
        unwanted = tuple(excluded.get(collective, ()))
        if not set(supported) - set(unwanted):
            raise ValueError(f"{collective} would have no algorithm left")
        harmless = next(algorithm for algorithm in ALGORITHMS if algorithm not in supported)
        names = [_NCCL_NAMES[algorithm] for algorithm in unwanted or (harmless,)]
        items.append(f"{collective.replace('_', '')}:^{','.join(names)}")
    return ";".join(items)


def table_variables(table: Path, plugin: Path) -> dict[str, str]:
    """Return the variables that have NCCL ask our plugin with this table."""
    return {"NCCL_TUNER_PLUGIN": str(plugin), Variable.NCCL_TABLE: str(table)}


def log_variables(folder: Path) -> dict[str, str]:
    """Return the variables that have NCCL write what it chooses, one file per process."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(folder / "nccl-%h-%p.log"),
    }


def supports_functions(nccl: Sequence[int]) -> bool:
    """Whether this version of NCCL can exclude algorithms by collective."""
    return tuple(nccl[:2]) >= MIN_NCCL_FOR_FUNCTIONS
