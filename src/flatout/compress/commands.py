"""The user's commands, with `{model}` and `{batch}` in them, and the limit `--max-loss`.

In: the texts of the options. Out: `UserCommand`s and a `MaxLoss`. Raises UsageError.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

from flatout.errors import UsageError
from flatout.records.compression import MaxLoss

MODEL, BATCH = "{model}", "{batch}"
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_SHELL_WORDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>"})
_LOSS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)")
_MOST_PERCENT = 100.0
_MOST_DIGITS = 10
# Metrics of which less is better; others are better if they are higher, unless an option says otherwise.
LOWER_IS_BETTER = frozenset(
    {"loss", "nll", "perplexity", "ppl", "error", "error_rate", "wer", "cer", "mse", "rmse", "mae", "eer", "fid"}
)


class UserCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command of the user, with its variables."""

    words: tuple[str, ...]
    variables: dict[str, str] = {}

    @property
    def has_model(self) -> bool:
        return any(MODEL in word for word in self.words)

    @property
    def has_batch(self) -> bool:
        return any(BATCH in word for word in self.words)

    def filled(self, *, model: str | None = None, batch: int | None = None) -> UserCommand:
        """Return the command with the model and the batch size in their places."""
        values = {MODEL: model, BATCH: None if batch is None else str(batch)}
        words = list(self.words)
        for mark, value in values.items():
            if value is not None:
                words = [word.replace(mark, value) for word in words]
        return UserCommand(words=tuple(words), variables=self.variables)


def user_command(option: str, text: str) -> UserCommand:
    """Return the command. Raises UsageError if it is empty or needs a shell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"`{option}` cannot be parsed as a command: {str(error).lower()}: {text}") from error
    for word in words:
        if word in _SHELL_WORDS or word.endswith(";"):
            raise UsageError(
                f"`{option}` is run without a shell, but has `{word}`", hint=f"{option} \"bash -c 'COMMANDS'\""
            )
    variables: dict[str, str] = {}
    while words and _VARIABLE.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if not words:
        raise UsageError(f"`{option}` must be a command, but is empty", hint=f"{option} 'python eval.py'")
    return UserCommand(words=tuple(words), variables=variables)


def parse_max_loss(text: str) -> MaxLoss:
    """Read `1%`, a share of the untouched model's metric, or `0.5`, an amount in the metric's unit."""
    match = _LOSS.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"`--max-loss` must be a share such as 1% or an amount above 0 in the unit of the metric, but got {text}"
        )
    value = float(match[1])
    is_relative = bool(match[2])
    if is_relative and value >= _MOST_PERCENT:
        raise UsageError(f"`--max-loss` must be below 100%, but got {text}")
    return MaxLoss(value=value / 100 if is_relative else value, is_relative=is_relative)


def is_higher_better(metric: str) -> bool:
    """Return whether more of a metric is better, as far as its name says."""
    return metric.lower() not in LOWER_IS_BETTER


def parse_batches(text: str | None) -> tuple[int, ...]:
    """Read `1,8,64`; () without any."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < _MOST_DIGITS for part in parts):
        raise UsageError(f"`--batches` must be whole numbers above 0, such as 1,8,64, but got {text}")
    return check_batches([int(part) for part in parts])


def check_batches(batches: Sequence[int]) -> tuple[int, ...]:
    """Return each size once. Raises UsageError if one is not above 0."""
    if not all(batch > 0 for batch in batches):
        raise UsageError(f"`--batches` must be whole numbers above 0, but got {', '.join(map(str, batches))}")
    return tuple(dict.fromkeys(batches))
