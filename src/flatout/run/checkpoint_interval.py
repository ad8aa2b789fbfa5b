"""Choose the interval of `flatout.checkpoint` before each attempt, from the ledger and the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.catalog.prices import all_prices
from flatout.errors import FlatoutError
from flatout.inside.protocol import Variable
from flatout.keep.interval_choice import IntervalChoice, choose
from flatout.keep.ledger import LedgerAccumulator, LedgerFile, Totals, read
from flatout.report.ledger_text import improvements_text
from flatout.run.messages import say


class CheckpointInterval:
    """Chooses the interval for the checkpoints in `folder` and writes each choice into the ledger."""

    def __init__(self, folder: Path, writer: LedgerFile) -> None:
        self._folder = folder
        self._writer = writer

    def variables(self, environment: Mapping[str, str], *, num_nodes: int) -> dict[str, str]:
        """Return the environment variable that `flatout.checkpoint` reads; empty if the user has set it."""
        if own_interval := environment.get(Variable.CHECKPOINT_EVERY_S):
            say(f"a checkpoint every {own_interval} s, from {Variable.CHECKPOINT_EVERY_S}")
            return {}
        saving, _ = self._choose(num_nodes)
        if saving is None:
            return {}
        say(saving.describe())
        return {Variable.CHECKPOINT_EVERY_S: f"{saving.every_s:.6g}"}

    def report_improvements(self, *, num_nodes: int) -> None:
        """Report at the end, from all measurements, which cost of failures should be lowered first."""
        saving, totals = self._choose(num_nodes)
        if saving is None:
            return
        price = all_prices().gpu(totals.gpu) if totals.gpu is not None else None
        usd_per_gpu_hour = float(price.typical) if price is not None else None
        say(improvements_text(saving.improvements(totals.num_devices or 1, usd_per_gpu_hour)))

    def _choose(self, num_nodes: int) -> tuple[IntervalChoice | None, Totals]:
        totals = LedgerAccumulator().totals()
        try:
            if self._writer.path.is_file():  # otherwise a pipe or a device, which cannot be read back
                totals = read(self._writer.path)
            saving = choose(self._folder, totals, num_nodes=num_nodes)
        except (FlatoutError, ArithmeticError, ValueError) as error:  # the job runs nevertheless
            say(f"the checkpoint interval is not chosen: {error}")
            return None, totals
        self._writer.write("saving", **msgspec.to_builtins(saving))
        return saving, totals
