"""Tables as sources: CSV, JSONL and Parquet, and what is refused in them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from tests.packing.images import write_image

from flatout.errors import FlatoutError
from flatout.packing.engines import on_processes
from flatout.packing.pack import pack
from flatout.packing.request import PackRequest
from flatout.packing.sources import read_source
from flatout.records.packing import PackResult

pytest.importorskip("webdataset")


def packed(table: Path, folder: Path, **options: object) -> PackResult:
    settings: dict[str, object] = {"num_ranks": 1, "num_workers": 1, **options}
    request = PackRequest(source=table, folder=folder, **settings)  # type: ignore[arg-type]
    return pack(request, lambda tasks: on_processes(tasks, 1))


def members(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                found[member.name] = content.read()
    return found


def test_a_csv_with_paths_keeps_its_other_columns(tmp_path: Path) -> None:
    lines = ["path,label,author"]
    for number in range(5):
        write_image(tmp_path / "images" / f"{number}.png")
        lines.append(f'images/{number}.png,{"dog" if number % 2 else "cat"},"A, {number}"')
    (tmp_path / "table.csv").write_text("\n".join(lines))
    result = packed(tmp_path / "table.csv", tmp_path / "packed")
    assert result.is_read_unchanged
    found = members(tmp_path / "packed")
    assert found["000000003.png"] == (tmp_path / "images" / "3.png").read_bytes()
    assert [found[f"{number:09d}.cls"] for number in range(5)] == [b"0", b"1", b"0", b"1", b"0"]
    assert json.loads(found["000000003.json"]) == {"author": "A, 3"}


def test_rows_of_jsonl_without_paths_are_samples_byte_by_byte(tmp_path: Path) -> None:
    rows = [{"text": f"ä {number}" * number, "label": number % 2} for number in range(10)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "table.jsonl").write_text("\n\n".join(lines) + "\r\n")
    result = packed(tmp_path / "table.jsonl", tmp_path / "packed", splits=(("a", 0.6), ("b", 0.4)), stratify="label")
    assert not result.is_read_unchanged
    assert result.splits == {"a": 6, "b": 4}
    found = members(tmp_path / "packed")
    assert [found[f"{number:09d}.json"].decode() for number in range(10)] == lines
    assert found["000000003.cls"] == b"1"


@pytest.mark.parametrize("is_struct", [False, True])
def test_bytes_in_parquet_are_packed_as_they_are(tmp_path: Path, is_struct: bool) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_image(tmp_path / "a.png")
    image = (tmp_path / "a.png").read_bytes()
    cells = [{"bytes": image, "path": "a.png"} if is_struct else image] * 5
    table = arrow.table({"image": cells, "label": [3, 1, 4, 1, 5], "note": list("abcde")})
    parquet.write_table(table, tmp_path / "table.parquet", row_group_size=2)
    packed(tmp_path / "table.parquet", tmp_path / "packed")
    found = members(tmp_path / "packed")
    assert all(found[f"{number:09d}.png"] == image for number in range(5))
    assert [found[f"{number:09d}.cls"] for number in range(5)] == [b"3", b"1", b"4", b"1", b"5"]
    assert json.loads(found["000000004.json"]) == {"note": "e"}


def test_paths_in_parquet_are_files(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [f"{number}.png" for number in range(4)]
    for path in paths:
        write_image(tmp_path / path)
    parquet.write_table(arrow.table({"file_name": paths}), tmp_path / "table.parquet")
    assert packed(tmp_path / "table.parquet", tmp_path / "packed").is_read_unchanged
    assert members(tmp_path / "packed")["000000002.png"] == (tmp_path / "2.png").read_bytes()


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("t.csv", "", {}, "must have a column of paths"),
        ("t.csv", "a,b\n1,2\n", {}, "must have a column of paths"),
        ("t.csv", "path\na.png\n\na,b\n", {}, "line 4: the row must have 1 values"),
        ("t.csv", "path\n\n", {}, "has no samples"),
        ("t.csv", "path,label\na.png,\n", {}, "line 2: column label must be a whole number or a text"),
        ("t.csv", "path\na.png\na.png\n", {}, "names a.png twice"),
        ("t.csv", "path\na.png\n", {"path_column": "x"}, "`--path-column` must be a column"),
        ("t.csv", "path\na.png\n", {"label_column": "x"}, "`--label-column` must be a column"),
        ("t.csv", "path,label\na.png,1\n", {"stratify": "x", "splits": (("a", 0.5), ("b", 0.5))}, "`--stratify` must"),
        ("t.csv", "path\na.png\n", {"stratify": "label", "splits": (("a", 0.5), ("b", 0.5))}, "`--stratify` needs"),
        ("t.csv", "path\n\0\n", {}, ""),
        ("t.jsonl", '{"path": "a.png"}\n{"path": 3}\n', {}, "line 2: column path must be a path"),
        ("t.jsonl", '{"text": "a"}\n[1]\n', {}, "line 2: it must be a JSON object"),
        ("t.jsonl", '{"label": 1}\n{"label": "dog"}\n', {}, "line 1: the label is a number"),
        ("t.jsonl", '{"label": 9223372036854775808}\n', {}, "line 1: column label must fit in 64 bits"),
        ("t.jsonl", f'{{"label": -{"9" * 400}}}\n', {}, "line 1: column label must fit in 64 bits"),
        ("t.jsonl", '{"label": 1.5}\n', {}, "line 1: column label must be a whole number or a text, but is 1.5"),
        ("t.parquet", "PAR1 no", {}, "is not valid Parquet"),
        ("t.txt", "a", {}, "must be a folder, or a file that ends in"),
        ("t.csv", "path\na.png\n", {}, "a.png: no such file"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_line(
    tmp_path: Path, name: str, text: str, options: dict[str, object], message: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(text)
    with pytest.raises(FlatoutError) as caught:
        packed(tmp_path / name, tmp_path / "packed", **{"num_ranks": 1, **options})
    if not message.endswith("no such file"):
        assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_that_are_numbers_as_text_stay_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\na.png,10\nb.png,-2\n")
    listing = read_source(PackRequest(source=tmp_path / "t.csv", folder=tmp_path / "packed"))
    assert [sample.label for sample in listing.samples] == [10, -2]
    assert listing.classes == ()
