"""What a failure's words mean: the record that `flatout explain --error` prints."""

from __future__ import annotations

from typing import Literal

import msgspec


class FailureExplanation(msgspec.Struct, frozen=True, kw_only=True, rename={"failure_class": "class"}):
    """The class of a failure, and whether another start helps."""

    failure_class: str  # one of the classes of `flatout run`, such as disk-full
    restart: str  # yes, no, or elsewhere: on another host
    name: str | None  # of the known failure; null: the words are of none
    phase: Literal["start", "training"] | None  # before or after the first step; null: unknown
    means: str
    way_out: str
    is_about_peers: bool  # a rank complains about others, which have the cause
    exception: str | None  # type of the exception that decides; null: a line of a log does
    text: str  # of that exception or line
    words: str | None  # part of the text that is known; null: only the exception's type is
    source: str | None
