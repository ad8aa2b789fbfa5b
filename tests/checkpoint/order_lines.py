"""What the lines of `order_job` say: which samples each step used, over all starts of a killed training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.checkpoint.order_job import NUM_SAMPLES

Step = tuple[int, tuple[int, ...]]  # epoch, rows


def steps_of(text: str) -> dict[int, Step]:
    """Return the steps of one start of one rank; a kill may have cut the last line."""
    steps = {}
    for line in text.splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and words[:1] == ["step"]:
            steps[int(words[1])] = (int(words[3]), tuple(map(int, words[5:])))
    return steps


def starts_of(text: str) -> list[tuple[int, dict[int, Step]]]:
    """Return the starts of a rank that appends all of them to one file: the step that each begins at, and its steps."""
    of_each = text.split("start ")[1:]
    return [(int(part.split("\n", 1)[0]), steps_of(part)) for part in of_each if "\n" in part]


def problems(starts: Iterable[tuple[int, dict[int, Step]]], whole: dict[int, Step]) -> list[str]:
    """Return where the starts of a rank (the step that each begins at, and its steps) differ from the whole run."""
    found = []
    for first, steps in starts:
        if steps and min(steps) != first + 1:
            found.append(f"a start from step {first} begins with step {min(steps)}")
        found += [f"step {step}: {rows}, but {whole[step]}" for step, rows in steps.items() if rows != whole[step]]
    return found


def uses_per_epoch(steps_of_ranks: Iterable[dict[int, Step]]) -> dict[int, Counter[int]]:
    """Return how often each sample was used in each epoch, by all ranks."""
    uses: dict[int, Counter[int]] = {}
    for steps in steps_of_ranks:
        for epoch, rows in steps.values():
            uses.setdefault(epoch, Counter()).update(rows)
    return uses


def wrong_samples(uses: dict[int, Counter[int]], num_epochs: int) -> dict[int, int]:
    """Return the samples of the first epochs that were not used exactly once, with their number of uses."""
    wrong = {}
    for epoch in range(num_epochs):
        counts = uses.get(epoch, Counter())
        wrong |= {row: counts[row] for row in range(NUM_SAMPLES) if counts[row] != 1}
    return wrong
