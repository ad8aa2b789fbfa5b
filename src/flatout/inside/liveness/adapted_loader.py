"""Change the loader of a running job at the start of an epoch, when somebody asks for it.

In: a file in the folder of heartbeats with the number of workers and of batches ahead, and loaders as they make their
iterators. Out: the loader's settings, and in the heartbeat those that it has and the number of the last request that
was followed. A script may make another loader for each epoch, so a request holds for all that follow. The samples and
their order stay the same; where a loader could not have the settings, it keeps its own. Without a file, nothing is
changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from flatout.inside.liveness.beat import Beat
from flatout.inside.protocol import File

_MOST_WORKERS = 64


class AdaptedLoader:
    """The requests of one process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / File.LOADER_REQUEST

    def epoch_begins(self, loader: Any, beat: Beat) -> None:
        """Follow the last request for a loader that is about to make an iterator, and note its settings."""
        if not _can_change(loader):
            return
        request = self._request()
        own = loader.num_workers, loader.prefetch_factor
        if request is not None and own in (request["before"], request["after"]):  # another loader keeps its own
            num_workers, loader.prefetch_factor = request["after"]
            loader.num_workers = min(num_workers, _MOST_WORKERS)
            beat.loader_request = request["number"]
        beat.loads_with(loader.num_workers, loader.prefetch_factor or 0)

    def _request(self) -> dict[str, Any] | None:
        """Return the request; None if there is none, or it is damaged."""
        try:
            written = json.loads(self._path.read_text(encoding="utf-8"))
            settings = {name: _settings(written[name]) for name in ("before", "after")}
            return {"number": int(written["number"]), **settings}
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _settings(written: dict[str, Any]) -> tuple[int, int]:
    return max(int(written["num_workers"]), 1), max(int(written["prefetch_factor"]), 1)


def _can_change(loader: Any) -> bool:
    """Whether the next iterator may have other workers: those that stay between epochs may not, nor iterable data."""
    is_worked = loader.num_workers > 0 and not loader.persistent_workers
    return is_worked and not isinstance(loader.dataset, IterableDataset)
