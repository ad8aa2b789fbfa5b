"""Packing: what is in the shards, resuming after a kill at any place, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest
from tests.packing.images import CLASSES, image_folder, write_image

from flatout.errors import FlatoutError, InputError, OutputError, UsageError
from flatout.packing.engines import engine_of, on_processes
from flatout.packing.index import read_index, read_samples
from flatout.packing.pack import pack
from flatout.packing.request import PackRequest, parse_splits
from flatout.packing.verify import verify_pack
from flatout.records.packing import PackResult

webdataset = pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "images")


def packed(source: Path, folder: Path, **options: object) -> PackResult:
    settings: dict[str, object] = {"num_ranks": 2, "num_workers": 1, **options}
    request = PackRequest(source=source, folder=folder, **settings)  # type: ignore[arg-type]
    return pack(request, lambda tasks: on_processes(tasks, 1))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def usual_order(source: Path) -> list[tuple[Path, int]]:
    """The files and labels of torchvision's `ImageFolder`, worked out in another way than Flatout's."""
    files = []
    for label, name in enumerate(CLASSES):
        images = [path for path in (source / name).rglob("*") if path.suffix.lower() in (".jpg", ".png")]
        # A folder's own files come before those of the folders in it.
        files += [(path, label) for path in sorted(images, key=lambda path: (str(path.parent), path.name))]
    return files


def test_each_sample_is_in_one_shard_bit_by_bit_with_its_index_and_label(source: Path, tmp_path: Path) -> None:
    result = packed(source, tmp_path / "packed")
    files = usual_order(source)
    samples = {}
    for path in (tmp_path / "packed").glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                assert member.name not in samples
                samples[member.name] = content.read()
    expected = {}
    for index, (path, label) in enumerate(files):
        expected[f"{index:09d}{path.suffix.lower()}"] = path.read_bytes()
        expected[f"{index:09d}.cls"] = str(label).encode()
    assert samples == expected
    assert result.num_samples == len(files) == 36
    assert [sample.name for sample in read_samples(tmp_path / "packed")] == [
        str(path.relative_to(source)) for path, _ in files
    ]


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the library's
def test_the_library_webdataset_reads_the_shards_by_the_printed_lines(source: Path, tmp_path: Path) -> None:
    result = packed(source, tmp_path / "packed")
    assert len(result.reading) == 3
    assert "split_by_node" in result.reading[1]
    names: dict[str, object] = {}
    exec("\n".join(result.reading), names)
    read = sorted((int(label), image.size) for image, label in names["samples"])  # type: ignore[attr-defined]
    assert read == sorted((label, (8, 6)) for _, label in usual_order(source))


def test_shards_are_equal_enough_for_each_worker_and_in_a_random_order(source: Path, tmp_path: Path) -> None:
    result = packed(source, tmp_path / "packed", num_ranks=2, num_workers=1)
    assert result.is_class_sorted
    assert (result.num_shards, result.least_samples, result.most_samples) == (8, 4, 5)
    order = [sample.label for sample in sorted(read_samples(tmp_path / "packed"), key=lambda s: (s.shard, s.offset))]
    assert sum(a != b for a, b in pairwise(order)) > 12  # 2 if it were sorted by class
    kept = packed(source, tmp_path / "kept", keeps_order=True)
    assert not kept.is_permuted
    assert contents(tmp_path / "kept") != contents(tmp_path / "packed")


# Kill at any place.


def killed(action: Callable[[], object]) -> None:
    """Call `action` in a child that must be killed within it."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the child ended before the place was reached"


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# By place: the function in which the process is killed, at which of its calls, and the number of shards that are kept.
PLACES = {
    "within a shard": ("flatout.packing.shard._verified", 3, 2),
    "before a shard's record": ("flatout.packing.shard.write_whole", 5, 3),
    "before the index": ("flatout.packing.pack.write_index", 1, 8),
    "within the index": ("flatout.packing.index.write_whole", 2, 8),
    "after the index": ("flatout.packing.pack.shutil.rmtree", 1, 8),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_pack_that_was_killed_continues_to_the_same_bytes(
    source: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(source, tmp_path / "whole")
    target, at_call, num_kept = PLACES[place]
    original = resolve_name(target)
    with monkeypatch.context() as patches:
        calls = 0

        def stop_at(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == at_call:
                kill()
            return original(*arguments, **options)

        patches.setattr(target, stop_at)
        killed(lambda: packed(source, tmp_path / "killed"))
    is_complete = contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert is_complete == (place == "after the index")
    assert packed(source, tmp_path / "killed").num_kept_shards == num_kept
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert not (tmp_path / "killed" / ".packing").exists()


def test_a_finished_shard_is_written_again_if_a_file_of_it_changed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patches:
        patches.setattr("flatout.packing.pack.write_index", kill)
        killed(lambda: packed(source, tmp_path / "packed"))
    write_image(source / "bee" / "0.JPG", seed=1)
    assert packed(source, tmp_path / "packed").num_kept_shards == 7
    assert verify_pack(tmp_path / "packed").damaged == ()
    packed(source, tmp_path / "new")
    assert contents(tmp_path / "new") == contents(tmp_path / "packed")
    write_image(source / "bee" / "0.JPG", seed=2)
    with pytest.raises(OutputError, match=r"bee/0\.JPG changed since"):
        packed(source, tmp_path / "packed")


# What is refused.


def test_damaged_files_are_refused_all_by_name(source: Path, tmp_path: Path) -> None:
    image = source / "ape" / "1.png"
    image.write_bytes(image.read_bytes()[:-40])
    (source / "bee" / "2.png").write_bytes(b"")
    (source / "cat" / "0.JPG").write_text("<html>404</html>")
    (source / "cat" / "3.JPG").unlink()
    (source / "cat" / "3.JPG").symlink_to("nowhere.jpg")
    with pytest.raises(InputError, match=r"4 of 36 are not") as caught:
        packed(source, tmp_path / "packed")
    message = str(caught.value)
    assert "ape/1.png: it cannot be decoded" in message
    assert "bee/2.png: it is empty" in message
    assert "cat/0.JPG: it is not an image" in message
    assert "cat/3.JPG: no such file" in message
    assert "\n" not in message
    assert read_index(tmp_path / "packed") is None
    for name in ("ape/1.png", "bee/2.png", "cat/0.JPG", "cat/3.JPG"):
        (source / name).unlink()
        write_image(source / name)
    assert packed(source, tmp_path / "packed").num_kept_shards > 0


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (lambda source: shutil.rmtree(source), {}, "does not exist"),
        (lambda source: [shutil.rmtree(path) for path in source.iterdir()], {}, "has no folders"),
        (lambda source: (source / "dog").mkdir(), {}, "1 of 4 have none: dog"),
        (lambda source: None, {"num_ranks": 10}, "10 * 1 * 4 = 40, and the data set has 36"),
        (lambda source: None, {"kind": "zip"}, "`--kind` must be"),
        (lambda source: None, {"crop": 0}, "`--resize-for` must be from 1"),
        (lambda source: None, {"stratify": "label"}, "`--stratify` needs splits"),
        (lambda source: None, {"label_column": "y"}, "`--label-column` is for tables"),
    ],
)
def test_what_cannot_be_packed_is_said_in_one_line(
    source: Path, tmp_path: Path, damage: Callable[[Path], object], options: dict[str, object], message: str
) -> None:
    damage(source)
    with pytest.raises(FlatoutError) as caught:
        packed(source, tmp_path / "packed", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "packed" / "index.json").exists()


def test_a_folder_of_splits_is_not_taken_for_classes(tmp_path: Path) -> None:
    image_folder(tmp_path / "images" / "train")
    with pytest.raises(InputError, match="has the splits train where its classes must be"):
        packed(tmp_path / "images", tmp_path / "packed")


def test_the_shards_are_never_within_the_data_set_or_over_other_files(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must not be within the data set"):
        packed(source, source / "ape")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(OutputError, match="has other files"):
        packed(source, tmp_path / "other")
    packed(source, tmp_path / "packed")
    with pytest.raises(OutputError, match="holds another pack"):
        packed(source, tmp_path / "packed", seed=1)


def test_too_small_a_disk_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(path.stat().st_size for path, _ in usual_order(source)) * 1.02 + 36 * (3 * 512 + 256)
    usage = shutil.disk_usage(tmp_path)
    for free, is_enough in ((int(total) + 1, True), (int(total) - 1, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        folder = tmp_path / f"packed-{is_enough}"
        if is_enough:
            packed(source, folder)
        else:
            with pytest.raises(OutputError, match="iB more, but the disk"):
                packed(source, folder)
            assert list(folder.glob("*.tar")) == []


# A finished pack.


def test_verify_names_the_sample_whose_bytes_changed_and_counts_shards(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    packed(source, folder)
    check = verify_pack(folder, num_ranks=2, num_workers=1)
    assert (check.damaged, check.num_samples, check.least_shards, check.needed_shards) == ((), 36, 8, 8)
    sample = next(read_samples(folder))
    with open(folder / sample.shard, "r+b") as file:
        file.seek(sample.offset + 10)
        byte = file.read(1)
        file.seek(sample.offset + 10)
        file.write(bytes([byte[0] ^ 1]))
    (damaged,) = verify_pack(folder).damaged
    assert damaged.name == sample.name
    shutil.copy(folder / "000001.tar", folder / "000000.tar.copy")
    (folder / "000003.tar").unlink()
    assert "000003.tar" in [each.name for each in verify_pack(folder).damaged]


def test_the_wids_index_lists_all_shards(source: Path, tmp_path: Path) -> None:
    packed(source, tmp_path / "packed")
    index = json.loads((tmp_path / "packed" / "all.wids.json").read_text())
    assert sum(shard["nsamples"] for shard in index["shardlist"]) == 36
    assert all((tmp_path / "packed" / shard["url"]).stat().st_size == shard["filesize"] for shard in index["shardlist"])


@pytest.mark.parametrize("text", ["", "a=1,b=1", "a=0.5", "a=0.5,a=0.5", "a/b=1", "a=nan,b=1", "train"])
def test_splits_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="`--split` must be"):
        parse_splits(text)


@pytest.mark.parametrize("text", ["", "spark", "local=3", "dask="])
def test_engines_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="`--on` must be"):
        engine_of(text, None)
