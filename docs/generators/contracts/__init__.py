"""The contracts of `--json` and of the files that Flatout writes, from the records that are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from flatout.records.tracking import Commit, Measure, TrackedResult
from generators.contracts import clusters, jobs, tunings
from generators.contracts.contract import contract_text, sections

CONTRACTS = {**jobs.CONTRACTS, **tunings.CONTRACTS, **clusters.CONTRACTS}


def tracked_result_json() -> str:
    """Return the records of a line of a history, which has no keys before them."""
    return sections((TrackedResult, Measure, Commit))


GENERATORS: Mapping[str, Callable[[], str]] = {
    **{mark: partial(contract_text, contract) for mark, contract in CONTRACTS.items()},
    "tracked_result_json": tracked_result_json,
}
