"""Mask the secrets in a tuning's command before files are written with it, and say that they must be filled in."""

from __future__ import annotations

import msgspec

from flatout.records.tuning import Tuning
from flatout.secrets import MASK, masked_command


def masked_tuning(tuning: Tuning) -> Tuning:
    """Return the tuning with secrets masked, because its files are meant to be shared, or are printed."""
    return msgspec.structs.replace(
        tuning, command=masked_command(tuning.command), sbatch_options=masked_command(tuning.sbatch_options)
    )


def masked_note(tuning: Tuning) -> tuple[str, ...]:
    """Return a note on what stands for the secrets in the written command; none if it has no secrets."""
    shown = masked_tuning(tuning)
    if (shown.command, shown.sbatch_options) == (tuning.command, tuning.sbatch_options):
        return ()
    return (
        f"values that look like secrets are {MASK} in the written command: before you run that, replace each of them,"
        " e.g. with a variable of the environment",
    )
