"""A file that holds several traces is refused: as one trace, the ranks would be mixed, and findings would be wrong."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest
from tests.read.conftest import read_path
from tests.read.samples import small_events, small_trace

from flatout.errors import InputError

CASE = Path(__file__).parents[1] / "data" / "cases" / "stored2.zip"
OBJECT, LIST = json.dumps(small_trace()).encode(), json.dumps(small_events()).encode()


def stored(*members: bytes) -> bytes:
    """Return a ZIP archive whose members are not compressed, so that their text is in it as it is."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for number, data in enumerate(members):
            archive.writestr(f"rank{number}.json", data)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["rank0.json", "traces.zip"])
def test_two_ranks_in_stored_members_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CASE.read_bytes())
    with pytest.raises(InputError, match="compressed in an unsupported format") as error:
        read_path(tmp_path / name)
    assert error.value.hint.startswith("unpack it first")


@pytest.mark.parametrize(
    "data",
    [
        *(OBJECT + OBJECT, OBJECT + b"\n" + OBJECT, OBJECT + b"," + OBJECT, b"[" + OBJECT + b"," + OBJECT + b"]"),
        *(LIST + LIST, LIST + b"\n\n" + LIST, OBJECT + LIST, OBJECT + b"\n" + LIST, LIST + OBJECT),
        *(b"\x1e" + OBJECT + b"\n\x1e" + OBJECT, gzip.compress(OBJECT) + gzip.compress(OBJECT)),
        *(stored(OBJECT), stored(OBJECT, OBJECT), gzip.compress(stored(OBJECT)), b"{}\n" + stored(OBJECT, OBJECT)),
    ],
)
def test_several_documents_in_one_file_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "rank0.json").write_bytes(data)
    with pytest.raises(InputError) as error:
        read_path(tmp_path / "rank0.json")
    assert "\n" not in str(error.value) and error.value.hint


@pytest.mark.parametrize("data", [OBJECT, LIST, OBJECT + b"\n", gzip.compress(OBJECT)])
def test_one_document_is_read(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "rank0.json").write_bytes(data)
    assert read_path(tmp_path / "rank0.json").num_events == 12
