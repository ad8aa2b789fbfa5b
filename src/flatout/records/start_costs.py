"""What the start of a trial costs, and where its time goes.

`inside/` notes the times, `trial/start_costs.py` divides them, `report/start_costs.py` shows them.
"""

from __future__ import annotations

import msgspec

Span = tuple[float, float]  # begin and end, in Unix seconds


class StartTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one rank's process before its first steps, in Unix seconds."""

    process_s: float | None  # when the process was started; None: unknown
    torch_s: float  # when torch was imported
    groups: tuple[Span, ...] = ()  # making process groups
    evaluations: tuple[Span, ...] = ()  # before the first event of the training loop
    loaders: tuple[Span, ...] = ()  # making the iterators of loaders, before that event
    compilation_s: float | None = None  # of torch.compile, until the warm-up was over; None: none, or unknown
    bytecode: str | None = None  # the file of torch's compiled bytecode; None: unknown
    bytecode_s: float | None = None  # when it was written; None: it is not there


class StartCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start of a trial's command to its first counted step, on the rank that was the last.

    The parts add up to `TrialResult.start_s`, except for `compilation_s`, which is in several of them.
    """

    launch_s: float  # until the rank's process was started, as by torchrun, which imports torch itself
    import_s: float  # until that process had imported torch
    setup_s: float  # the script's own: other imports, the model, the index of its data
    group_s: float  # making process groups
    evaluation_s: float  # evaluating before the training
    first_batch_s: float  # starting the loader and waiting for the first batch
    first_step_s: float  # the rest of the first step
    warmup_s: float  # the steps after it that do not count
    compilation_s: float | None = None
    end_s: float | None = None  # not part of the start: from the last counted step to the end of the command

    @property
    def start_s(self) -> float:
        to_training_s = self.launch_s + self.import_s + self.setup_s + self.group_s
        return to_training_s + self.evaluation_s + self.first_batch_s + self.first_step_s + self.warmup_s
