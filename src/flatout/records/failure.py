"""The meaning of a failure's text: the record that `flatout explain --error` prints."""

from __future__ import annotations

from typing import Literal

import msgspec


class FailureExplanation(msgspec.Struct, frozen=True, kw_only=True, rename={"failure_class": "class"}):
    """The class of a failure, and whether another start helps."""

    failure_class: str  # one of the classes of `flatout run`, such as disk-full
    restart: str  # yes, no, or elsewhere: on another host
    name: str | None  # name of the known failure; null: the text does not match any
    phase: Literal["start", "training"] | None  # before or after the first step; null: unknown
    means: str
    way_out: str
    is_about_peers: bool  # the rank reports a problem with other ranks, which have the cause
    exception: str | None  # type of the exception that decides; null: a log line decides
    text: str  # of that exception or line
    words: str | None  # part of the text that is known; null: only the exception's type is known
    source: str | None
    likelihood: float | None = None  # of the class, where only the words of similar failures say it; null: it is known
