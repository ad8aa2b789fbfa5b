"""Halve the microbatch and double the passes of a step: the same samples per step, in less memory.

In: a command, and the names of the script's two options, unless they are known. Out: what they are now, the next
smaller microbatch, and the command with it. A command that does not state both is left alone, as the script's own
default is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.change.arguments import UserKnob, current_values, with_arguments
from flatout.errors import UsageError
from flatout.records.adaptation import MicroBatch
from flatout.records.change import Argument

# The options of the microbatch and of the passes per step: of transformers' TrainingArguments, of nanoGPT's train.py,
# and of diffusers' examples.
KNOWN_OPTIONS = (
    ("--per_device_train_batch_size", "--gradient_accumulation_steps"),
    ("--batch_size", "--gradient_accumulation_steps"),
    ("--train_batch_size", "--gradient_accumulation_steps"),
)


def parse_options(text: str) -> tuple[str, str]:
    """Parse `--batch-size,--accumulate`. Raises UsageError if these are not the names of two options."""
    names = tuple(name.strip() for name in text.split(","))
    are_options = all(name.startswith("-") and name.strip("-") and "=" not in name for name in names)
    if len(names) != 2 or not are_options or names[0] == names[1]:
        raise UsageError(
            f"`--micro-batch` must name the script's options for its microbatch and its passes per step, but is {text}",
            hint="for example: --micro-batch=--batch-size,--accumulate",
        )
    return names[0], names[1]


def micro_batch_of(command: Sequence[str], options: tuple[str, str] | None = None) -> MicroBatch | None:
    """Return the microbatch that the command states; None if it does not state both numbers."""
    for batch_option, passes_option in KNOWN_OPTIONS if options is None else (options,):
        values = current_values(_knob(batch_option, passes_option), command)
        if values is not None and all(value.isdecimal() and int(value) for value in values):
            batch, passes = map(int, values)
            return MicroBatch(batch_option=batch_option, passes_option=passes_option, batch=batch, passes=passes)
    return None


def _knob(*options: str) -> UserKnob:
    words = tuple((option, "{}") for option in options)
    return UserKnob(names=("batch", "passes"), safety=None, values=(), words=words)


def halved(micro_batch: MicroBatch) -> MicroBatch | None:
    """Return the next smaller microbatch with the same samples per step; None if its size is odd."""
    if micro_batch.batch % 2:
        return None
    return MicroBatch(
        batch_option=micro_batch.batch_option,
        passes_option=micro_batch.passes_option,
        batch=micro_batch.batch // 2,
        passes=micro_batch.passes * 2,
    )


def with_micro_batch(command: Sequence[str], micro_batch: MicroBatch) -> tuple[str, ...]:
    """Return the command with these two numbers, written as the command writes them."""
    new = ((micro_batch.batch_option, micro_batch.batch), (micro_batch.passes_option, micro_batch.passes))
    words = tuple(_words(command, option, number) for option, number in new)
    return with_arguments(command, [Argument(words=words)])


def _words(command: Sequence[str], option: str, number: int) -> tuple[str, ...]:
    is_assigned = any(word.startswith(f"{option}=") for word in command)
    return (f"{option}={number}",) if is_assigned else (option, str(number))
