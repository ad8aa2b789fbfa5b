"""Where torchrun's agents of several nodes meet: words in place of the user's own, whose host was another."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.change.launchers import calls, launch_word, with_launch_words
from flatout.records.tuning import Tuning

PORT = 29500  # torch's own default
_OWN = (
    "--standalone",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
)


def num_nodes(tuning: Tuning) -> int:
    """As the command says by `--nnodes` (of MIN:MAX the most), else as many as it was measured on."""
    asked = launch_word(tuning.command, "torchrun", "--nnodes") if calls(tuning.command, "torchrun") else None
    text = asked.rpartition(":")[2] if asked is not None else tuning.machine.get("num_hosts", "")
    return max(int(text), 1) if text.isdecimal() else 1


def meets(tuning: Tuning) -> bool:
    """Whether the command needs to be told where its agents meet."""
    return num_nodes(tuning) > 1 and calls(tuning.command, "torchrun")


def with_rendezvous(words: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    return with_launch_words(words, "torchrun", added, dropped=_OWN)
