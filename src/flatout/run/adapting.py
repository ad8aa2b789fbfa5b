"""All that `flatout run --adapt` does to a job: one adapter for each kind of change, each asked for by its option.

    adapt.LoaderAdapter             loader workers and batches ahead, from the next epoch on
    adapt_memory.MemoryAdapter      a smaller microbatch after the GPU memory ran out
    adapt_nodes.LateNodeAdapter     an elastic job continues without this node
    adapt_semantic.SemanticAdapter  local SGD, or fewer samples for a late rank, only with a separate option
    adapt_power.PowerAdapter        power limits, only with an option that says that the machine is the user's

In: heartbeats, and how attempts ended. Out: lines for the user and the ledger, and decisions about attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from flatout.keep.attempt import AttemptResult
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.ledger import LedgerFile
from flatout.keep.peer_board import PeerBoard
from flatout.keep.rules import Judgement
from flatout.keep.supervise import Decision
from flatout.probe.limits import allowed_cores
from flatout.probe.power_limits import PowerLimits
from flatout.records.adaptation import LateNodeAdaptation, MemoryAdaptation, PowerAdaptation, SemanticAdaptation
from flatout.records.cores import cores_of_rank
from flatout.records.watch import Adaptation
from flatout.report.adaptation_text import (
    adaptation_sentence,
    late_node_sentence,
    memory_sentence,
    power_sentence,
    semantic_sentence,
)
from flatout.run.adapt import LoaderAdapter
from flatout.run.adapt_memory import MemoryAdapter
from flatout.run.adapt_nodes import LateNodeAdapter
from flatout.run.adapt_power import PowerAdapter
from flatout.run.adapt_semantic import SemanticAdapter
from flatout.watch.exporter.collector import LatestHeartbeats

Mode = Literal["dry-run", "on"]


class Adapting:
    """The adapters of one run."""

    def __init__(
        self,
        mode: Mode,
        command: Sequence[str],
        *,
        state: Path,
        micro_batch_options: tuple[str, str] | None,
        nodes: PeerBoard,
        least_nodes: int | None,
        spans_nodes: bool,
        is_semantic: bool,
        patches: str | None,
        power_limits: PowerLimits | None,
        say: Callable[[str], object],
        ledger: LedgerFile,
    ) -> None:
        """Choose the adapters. `least_nodes` are those that an elastic job needs; None: it is not elastic.

        The microbatch does not change on several nodes: each node restarts alone, and all would have to agree.
        """
        self._mode = mode
        self._state = state
        self._say = say
        self._ledger = ledger
        self._loader: LoaderAdapter | None = None
        self._looks: list[Callable[[Sequence[HeartbeatSample]], None]] = []
        self._ends: list[Callable[[Sequence[HeartbeatSample]], bool]] = []
        self._settles: list[Callable[[Judgement, AttemptResult], Decision | None]] = []
        self._memory: MemoryAdapter | None = None
        self._semantic: SemanticAdapter | None = None
        self._power: PowerAdapter | None = None
        if not spans_nodes:
            self._memory = MemoryAdapter(mode, command, micro_batch_options, report=self._tell_memory)
            self._looks.append(self._memory.look)
            self._settles.append(self._memory.settles)
        if least_nodes is not None:
            node = LateNodeAdapter(mode, nodes, least_nodes, report=self._tell_node)
            self._looks.append(node.look)
            self._ends.append(node.ends_attempt)
            self._settles.append(node.settles)
        if is_semantic:
            self._begin_semantic(patches, spans_nodes=spans_nodes)
        if power_limits is not None:
            self._power = PowerAdapter(mode, power_limits, report=self._tell_power)
            self._looks.append(self._power.look)

    def _begin_semantic(self, patches: str | None, *, spans_nodes: bool) -> None:
        """Add the adapter of the training, unless nothing may be changed."""
        semantic = SemanticAdapter(self._mode, report=self._tell_semantic)
        if spans_nodes:
            self._say("--adapt-semantic changes nothing: several nodes would have to agree")
        elif semantic.excludes(patches):
            self._say("--adapt-semantic changes nothing: the changes of --config exclude it")
        else:
            self._semantic = semantic
            self._looks.append(semantic.look)
            self._ends.append(semantic.ends_attempt)
            self._settles.append(semantic.settles)

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Look at the ranks of this node."""
        if not ranks:
            return
        if self._loader is None:
            cores = int(cores_of_rank(allowed_cores(), len(ranks)))
            self._loader = LoaderAdapter(self._mode, cores, say=self._tell_loader, ledger=self._ledger)
        self._loader.look(ranks, LatestHeartbeats(self._state).latest_attempt())
        for look in self._looks:
            look(ranks)

    def ends_attempt(self, ranks: Sequence[HeartbeatSample]) -> bool:
        """Return whether to end this node's part of the job now."""
        return any(ends(ranks) for ends in self._ends)

    def settles(self, judgement: Judgement, done: AttemptResult) -> Decision | None:
        """Return the decision about an attempt that an adaptation ended, or whose failure one avoids."""
        for settle in self._settles:
            decision = settle(judgement, done)
            if decision is not None:
                return decision
        return None

    def command(self, words: Sequence[str]) -> Sequence[str]:
        """Return the command of the next attempt."""
        return words if self._memory is None else self._memory.command(words)

    def patches(self, own: str | None) -> str | None:
        """Return the patches of the next attempt: the job's own, and that of a change of its training."""
        return own if self._semantic is None else self._semantic.patches(own)

    def close(self) -> None:
        """Restore what must not stay changed after the job."""
        if self._power is not None:
            self._power.close()

    def _tell_loader(self, adaptation: Adaptation) -> None:
        self._say(adaptation_sentence(adaptation))

    def _tell_memory(self, adaptation: MemoryAdaptation) -> None:
        self._tell("memory", adaptation, memory_sentence(adaptation))

    def _tell_node(self, adaptation: LateNodeAdaptation) -> None:
        self._tell("late_node", adaptation, late_node_sentence(adaptation))

    def _tell_semantic(self, adaptation: SemanticAdaptation) -> None:
        self._tell("semantic", adaptation, semantic_sentence(adaptation))

    def _tell_power(self, adaptation: PowerAdaptation) -> None:
        self._tell("power", adaptation, power_sentence(adaptation))

    def _tell(self, kind: str, adaptation: msgspec.Struct, sentence: str) -> None:
        self._say(sentence)
        self._ledger.write("adaptation", kind=kind, **msgspec.to_builtins(adaptation))
