"""Hook the calls by which a DataLoader makes its batches, in its workers or in the training process.

In: a function that is called in place of a fetcher's `fetch`, with the original one. Out: a function that removes the
hook.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.utils.data import _utils

Fetch = Callable[[Callable[[Any, Any], Any], Any, Any], Any]  # the original, the fetcher, the indices -> the batch


def hook_fetchers_with(fetch_batch: Fetch) -> Callable[[], None]:
    kinds = (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher)
    originals = [kind.fetch for kind in kinds]

    def hooked(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @wraps(original)
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            return fetch_batch(original, self, possibly_batched_index)

        return fetch

    for kind, original in zip(kinds, originals, strict=True):
        kind.fetch = hooked(original)

    def undo() -> None:
        for kind, original in zip(kinds, originals, strict=True):
            kind.fetch = original

    return undo
