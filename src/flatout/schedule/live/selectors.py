"""Select jobs by `KEY=PATTERN`, such as `partition=low`, `user=ann*` or `comment=*urgent*`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import msgspec

from flatout.errors import UsageError
from flatout.schedule.live.view import JobView

KEYS = ("partition", "account", "user", "qos", "name", "comment", "id")
PROTECTED_MARK = "flatout-protected"


class Selector(msgspec.Struct, frozen=True):
    key: str
    pattern: str

    def matches(self, job: JobView) -> bool:
        values = getattr(job, self.key).split(",") if self.key == "partition" else [getattr(job, self.key)]
        return any(fnmatchcase(value, self.pattern) for value in values)


def selectors(option: str, texts: Iterable[str]) -> tuple[Selector, ...]:
    """Parse the values of an option. Raises a UsageError that names the option if a value is not `KEY=PATTERN`."""
    parsed = []
    for text in texts:
        key, separator, pattern = text.partition("=")
        if not separator or not pattern or key not in KEYS:
            raise UsageError(f"{option} must be KEY=PATTERN with a key of {', '.join(KEYS)}, but is `{text}`")
        parsed.append(Selector(key, pattern))
    return tuple(parsed)


def is_any(job: JobView, wanted: Sequence[Selector]) -> bool:
    return any(each.matches(job) for each in wanted)
