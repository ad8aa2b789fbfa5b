"""Find the codes of errors in a message, however a library spells them: errno, HTTP status, CUDA error.

In: a message without names of data. Out: each code with the words that say it. What a code means is in `failures.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Where a library numbers its errors itself (`[Errno 5] {...}`), the number is not the operating system's.
_ERRNO = re.compile(
    r"\[Errno (\d+)\](?! ?\{)|\berrno(?: code)?\s*[=:]?\s*-?(\d+)(?!\d|\] ?\{)"
    r"|\(os error (\d+)\)|\bOs \{ code: (\d+)|\[WinError (\d+)\]"
    r"|\bSO_ERROR: [\w ]*\((\d+)\)|\bsystem error (\d+)\b",
    re.IGNORECASE,
)
_HTTP_STATUS = re.compile(
    r"\b([45]\d\d) (?:Client|Server) Error\b|\bHTTP(?: Error|/\d(?:\.\d)?| status(?: code)?| code)?[ :=]+([45]\d\d)\b"
    r"|\b(?:response|status)[ _-]?code[ :=]+([45]\d\d)\b|\bstatus[ :=]+([45]\d\d)\b|\(([45]\d\d)\) when calling\b"
    r"|\b([45]\d\d)[: ]+(?:Unauthorized|Forbidden|Not Found|Bad Request|Bad Gateway|Service Unavailable"
    r"|Gateway Time-?out|Too Many Requests|Internal Server Error|Request Time-?out|Payload Too Large)\b"
    r"|\bError ([45]\d\d) \(|\breturned error(?: code)?:? ([45]\d\d)\b|<Response \[([45]\d\d)\]>",
    re.IGNORECASE,
)
_OF_GPU = re.compile(r"cuda|hip|gpuassert", re.IGNORECASE)  # without it, none of the patterns below fits
_CUDA_NUMBER = re.compile(
    r"\bCuda (?:failure|error) (\d+)\b|\bCUDA error \((\d+)\)|\bcudaError_t\W+(\d+)\b"
    r"|\b(?:cuda|hip)Success \((\d+) vs\. 0\)",  # old programs number otherwise, but not the errors of the catalog
    re.IGNORECASE,
)
_CUDA_NAME = re.compile(r"\b(?:cudaError|hipError|CUDA_ERROR_|cuda_error_)([A-Za-z]\w*)")
_CUDA_WORDS = re.compile(
    r"\b(?:(?:CUDA|HIP)(?: driver| runtime)? (?:error|failure)(?: \d+| \(\d+\))?\s*:?"
    r"|(?:cuda|hip)Success \(\d+ vs\. 0\)|code: \d+, reason:"
    r"|GPUassert:|THCudaCheck FAIL [^\n]{0,200}? error=\d+ :)\s*(\w[^\n]*)",
    re.IGNORECASE,
)


def errnos_in(message: str) -> dict[int, str]:
    return _numbers(_ERRNO, message)


def http_statuses_in(message: str) -> dict[int, str]:
    return _numbers(_HTTP_STATUS, message)


def cuda_errors_in(message: str, known: Mapping[str, tuple[str, ...]]) -> dict[int, str]:
    """Return the CUDA errors in a message; `known` has the names and the words of each number."""
    if not _OF_GPU.search(message):
        return {}
    errors = _numbers(_CUDA_NUMBER, message)
    for number, spellings in known.items():
        words = _spelled(message, spellings)
        if words is not None:
            errors[int(number)] = words
    return errors


def _spelled(message: str, spellings: tuple[str, ...]) -> str | None:
    """Return the words that spell this error: a constant's name in any library's case, or the text of the error."""
    wanted = {_folded(spelling) for spelling in spellings}
    for match in _CUDA_NAME.finditer(message):
        if _folded(match[1]) in wanted:
            return match[0]
    for match in _CUDA_WORDS.finditer(message):
        said = match[1].lower()
        text = next((spelling for spelling in spellings if " " in spelling and said.startswith(spelling)), None)
        if text is not None:
            return match[0][: match.start(1) - match.start() + len(text)]
    return None


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


def _numbers(pattern: re.Pattern[str], message: str) -> dict[int, str]:
    words_of: dict[int, str] = {}
    for match in pattern.finditer(message):
        number = int(next(group for group in match.groups() if group is not None))
        words_of.setdefault(number, match[0])
    return words_of
