"""Batches of samples of like length: less padding, and steps that take equally long on all ranks. And larger batches
for a script that only infers, where the user limits the latency of its calls.

The recording shows whether lengths differ: by how much the length to which its batches are padded varies. Whether the
script's loader can be balanced is seen only in the job, where the patch says why not.
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "batches"
MIN_SPREAD = 0.05  # standard deviation of the padded length of a batch, as a share of its mean
_SOURCE = "Khomenko et al. 2017 (arXiv:1708.05604), sequence bucketing; fairseq --max-tokens"
_NEEDS = (
    Need(fact="loader_length_spread", relation="at least", value=MIN_SPREAD),
    Need(fact="loader_is_iterable", relation="is", value=False),
)

LENGTH_BUCKETS = Knob(
    name="batches-by-length",
    family=FAMILY,
    summary="make batches of samples of like length",
    safety="semantic",
    answers={"unbalanced-data": 0.9},
    reduces={"compute": 0.5},
    needs=_NEEDS,
    excludes=("batches-by-tokens",),
    doc=(
        "Samples are sorted by length within 50 steps, in the order of the script's own sampler, and the steps are"
        " shuffled: each sample once per epoch, as many batches on all ranks, and like lengths on all ranks in a step."
        " A batch is no longer a random choice of samples: losses differ from the script's, and where length goes with"
        " the label, each step learns from some labels more than from others. It needs torch's own shuffling sampler"
        " and a map-style data set; lengths are read once, for at most a minute."
    ),
    source=_SOURCE,
)
TOKEN_BUDGET = Knob(
    name="batches-by-tokens",
    family=FAMILY,
    summary="make batches of at most N tokens, padding included, of samples of like length",
    safety="semantic",
    answers={"unbalanced-data": 1.0},
    reduces={"compute": 0.5},
    needs=_NEEDS,
    valid=ValidRange(least=1, most=100_000_000),
    excludes=("batches-by-length",),
    doc=(
        "As batches by length, but a batch has as many samples as fit into the budget, so that steps take equally long."
        " The budget is what the job's batches have now on average. A mean over the samples of a batch weighs samples"
        " of short batches less than others, and an epoch has another number of steps, which a schedule of the learning"
        " rate may count."
    ),
    source=_SOURCE,
)
LARGER = (2, 4, 8, 16)  # times the script's samples in a batch
LOADER_BATCH = Knob(
    name="loader-batch",
    family=FAMILY,
    summary="larger batches from the script's DataLoader, as far as the user's limit of latency allows",
    safety="exact",
    answers={"small-batch": 1.0},
    reduces={"compute": 0.9},
    needs=(
        Need(fact="only_infers", relation="is", value=True),
        Need(fact="limited_batch", relation="at least", value=1),
        Need(fact="loader_workers", relation="at least", value=0),
    ),
    valid=ValidRange(least=1, most=100_000),
    doc=(
        "Offered with `--latency` alone, because the first sample of a batch waits for the last one. The samples and"
        " their order stay, and their outputs are compared one by one. It needs more memory."
    ),
    source="torch.utils.data documentation, automatic batching",
)
KNOBS = (LENGTH_BUCKETS, TOKEN_BUDGET, LOADER_BATCH)


def changes(facts: JobFacts) -> Iterator[Change]:
    for times in LARGER if facts.limited_batch else ():
        size = times * (facts.limited_batch or 1)
        yield setting(LOADER_BATCH, size, patch="loader_batch", size=size)
    if facts.loader_length_spread is None:
        return
    yield setting(LENGTH_BUCKETS, patch="balanced_batches")
    if facts.loader_batch_tokens is not None:
        budget = facts.loader_batch_tokens
        yield setting(TOKEN_BUDGET, budget, patch="balanced_batches", max_tokens=budget)
