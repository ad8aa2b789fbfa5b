"""Sentences about what `flatout run --adapt` did to a job, or would do."""

from __future__ import annotations

from flatout.records.adaptation import (
    LateNodeAdaptation,
    MemoryAdaptation,
    MicroBatch,
    PowerAdaptation,
    SemanticAdaptation,
)
from flatout.records.watch import Adaptation, LoaderSettings
from flatout.report.phrases import counted
from flatout.units import number, percent, seconds


def adaptation_sentence(adaptation: Adaptation) -> str:
    """Return the action with its reason, the expected and the measured effect."""
    change = f"from {_settings(adaptation.before)} to {_settings(adaptation.after)}"
    reason = f"ranks wait {percent(adaptation.wait_share)} of the step for batches"
    expected = "its gain is unknown"
    if adaptation.expected_gain is not None:
        expected = f"at most {percent(adaptation.expected_gain)} of the step is gained"
    match adaptation.outcome:
        case "would_change":
            return f"dry run: the loader would go {change} at the next epoch: {reason}; {expected}"
        case "changed":
            return f"the loader goes {change} at the next epoch: {reason}; {expected}"
    steps = f"{seconds(adaptation.before_s)} to {seconds(adaptation.after_s or 0.0)} per step"
    if adaptation.outcome == "kept":
        return f"the loader stays at {_settings(adaptation.after)}: {steps}"
    return f"the loader goes back to {_settings(adaptation.before)} at the next epoch, as it did not pay: {steps}"


def _settings(settings: LoaderSettings) -> str:
    workers = counted(settings.num_workers, "worker")
    batches = "1 batch" if settings.prefetch_factor == 1 else f"{settings.prefetch_factor} batches"
    return f"{workers} with {batches} ahead"


def memory_sentence(adaptation: MemoryAdaptation) -> str:
    """Return what is done about GPU memory that ran out."""
    before, after = adaptation.before, adaptation.after
    if after is None:
        return f"the GPU memory ran out with {_micro_batch(before)}: an odd microbatch is not halved"
    same = f"both are {before.batch * before.passes:,} samples per step and rank"
    match adaptation.outcome:
        case "would_change":
            change = f"{_micro_batch(after)} instead of {_micro_batch(before)}"
            return f"dry run: the job would restart with {change}: {same}"
        case "changed":
            change = f"the GPU memory ran out: {_micro_batch(after)} instead of {_micro_batch(before)}"
            return f"{change}, {same}; batch normalisation sees the smaller microbatch"
    was = f", {seconds(adaptation.before_s)} before" if adaptation.before_s is not None else ""
    time = f": {seconds(adaptation.after_s)} per step{was}" if adaptation.after_s is not None else ""
    return f"{_micro_batch(after)} fits into the GPU memory{time}"


def _micro_batch(micro_batch: MicroBatch) -> str:
    return f"{micro_batch.batch_option} {micro_batch.batch} {micro_batch.passes_option} {micro_batch.passes}"


def late_node_sentence(adaptation: LateNodeAdaptation) -> str:
    """Return what is done about a late node."""
    node = adaptation.node
    reason = f"the others wait {seconds(adaptation.late_s)} of each {seconds(adaptation.step_s)} step for it"
    share = f"{adaptation.num_ranks_left} of {adaptation.num_ranks} ranks"
    expected = f"{share} would make {percent(adaptation.expected_gain)} more samples per second"
    match adaptation.outcome:
        case "would_leave":
            return f"dry run: {node} would leave the job at the next checkpoint: {reason}; {expected}"
        case "leaves":
            return f"{node} leaves the job at the next checkpoint: {reason}; {expected}"
        case "left":
            return f"a checkpoint was written: {node} has left the job, and measures what the others gain"
    if adaptation.measured_gain is None:
        return f"{node} stays away: what the others gain could not be measured"
    gain = f"the others make {adaptation.measured_gain:+.1%} samples per second"
    if adaptation.outcome == "kept":
        return f"{node} stays away: {gain}"
    return f"{node} joins the job again, as leaving did not pay: {gain}"


def power_sentence(adaptation: PowerAdaptation) -> str:
    """Return what is done to the power limits."""
    gpus = counted(len(adaptation.gpus), "GPU")
    before = f"{number(adaptation.before_w)} W"
    limit = f"{number(adaptation.limit_w)} W"
    first = f"{seconds(adaptation.before_s)} and {number(adaptation.before_j)} J per step at {before}"
    if adaptation.outcome == "would_try":
        return f"dry run: the power limit of {gpus} would fall from {before} to {limit}: {first}; its gain is unknown"
    if adaptation.outcome == "stopped":
        return f"the power limit stays at {before}: {adaptation.problem}"
    assert adaptation.after_s is not None and adaptation.after_j is not None
    measured = f"{seconds(adaptation.after_s)} and {number(adaptation.after_j)} J per step, {first}"
    match adaptation.outcome:
        case "tried":
            return f"power limit of {gpus} at {limit}: {measured}"
        case "kept":
            return f"the power limit of {gpus} stays at {limit} until the job ends: {measured}"
    return f"the power limit of {gpus} goes back to {before}, as a lower one did not pay: {measured}"


def semantic_sentence(adaptation: SemanticAdaptation) -> str:
    """Return the change of what is trained, with its reason, the expected and the measured effect."""
    reason = f"{percent(adaptation.share)} of the step is exposed communication"
    change = f"weights are averaged every {adaptation.every} steps instead of gradients in each"
    if adaptation.change == "work_share":
        reason = f"the others wait {percent(adaptation.share)} of the step for rank {adaptation.rank}"
        change = f"rank {adaptation.rank} gets {adaptation.percent} % of its samples, and the others the rest"
    expected = f"at most {percent(adaptation.expected_gain)} of the step is gained"
    match adaptation.outcome:
        case "would_change":
            return f"dry run: from the next checkpoint on, {change} (semantic): {reason}; {expected}"
        case "change":
            return f"from the next checkpoint on, {change} (semantic): {reason}; {expected}"
        case "changed":
            return f"a checkpoint was written: {change}"
        case "undone":
            return "the training is as it was from this checkpoint on"
    steps = f"{seconds(adaptation.before_s)} to {seconds(adaptation.after_s or 0.0)} per step"
    if adaptation.outcome == "kept":
        return f"it stays that {change}: {steps}"
    return f"it did not pay that {change}: {steps}; the training goes back at the next checkpoint"
