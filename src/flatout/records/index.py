"""The results in a folder, as `flatout index` lists them."""

from __future__ import annotations

import msgspec


class IndexedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One result: the JSON that a command printed, or a page that one wrote, or both."""

    kind: str  # of the schema, such as `diagnosis`; `page` where there is only a page
    path: str  # of the JSON or else of the page, within the folder
    page: str | None  # within the folder; null if there is none
    written_s: float  # seconds since 1970
    headline: str  # what the result says, in one line


class ResultIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The results in a folder and the folders in it, the newest first."""

    folder: str
    results: tuple[IndexedResult, ...]
    num_not_listed: int  # beyond the limit
    unreadable: tuple[str, ...]  # files that look like results and could not be read, each with the reason
