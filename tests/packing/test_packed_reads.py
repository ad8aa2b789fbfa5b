"""Scripts that read a packed data set unchanged: the same samples and labels in the same order."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.packing.images import image_folder, write_image

from flatout.errors import FlatoutError
from flatout.inside.packed_reads.reads import hook_packed_reads
from flatout.inside.protocol import Variable
from flatout.packing.engines import on_processes
from flatout.packing.pack import pack
from flatout.packing.request import PackRequest
from flatout.run.packed import packed_setting

pytest.importorskip("torch")
pytest.importorskip("webdataset")
STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "images")


@pytest.fixture
def packed(tmp_path: Path, source: Path) -> Path:
    folder = tmp_path / "packed"
    request = PackRequest(source=source, folder=folder, num_ranks=1, num_workers=1)
    pack(request, lambda tasks: on_processes(tasks, 1))
    return folder


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Import the stand-in, anew for each call as a script does, and leave none behind."""

    def imported() -> Any:
        forget()
        return importlib.import_module("torchvision.datasets.folder")

    forget()
    finders = list(sys.meta_path)
    monkeypatch.syspath_prepend(str(STAND_IN))
    yield imported
    forget()
    sys.meta_path[:] = finders


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    undos: list[Callable[[], None]] = []

    def put_on(*packs: str) -> None:
        forget()  # as in a new process
        monkeypatch.setenv(Variable.PACKED, packed_setting(packs))
        undo = hook_packed_reads()
        assert undo is not None
        undos.append(undo)

    yield put_on
    for undo in undos:
        undo()


def stream(folder_module: Any, root: object, **options: Any) -> list[tuple[int, bytes, int, str]]:
    """What a script sees of an `ImageFolder`: index, pixels, label and path."""
    dataset = folder_module.ImageFolder(root, **options)
    return [
        (index, image.tobytes(), label, dataset.samples[index][0])
        for index, (image, label) in enumerate(dataset[number] for number in range(len(dataset)))
    ]


def test_an_image_folder_has_the_same_stream_from_a_pack_without_its_files(
    source: Path, packed: Path, torchvision: Callable[[], Any], hook: Callable[..., None]
) -> None:
    usual = stream(torchvision(), str(source))
    setting_paths = {path for _, _, _, path in usual}
    hook(str(packed))
    shutil.move(source, source.with_name("gone"))
    module = torchvision()
    assert stream(module, str(source)) == usual
    assert module.ImageFolder(str(source)).classes == ["ape", "bee", "cat"]
    assert setting_paths == {path for path, _ in module.ImageFolder(source).imgs}


def test_a_data_set_with_its_own_rules_has_them_and_its_files_from_the_pack(
    source: Path, packed: Path, torchvision: Callable[[], Any], hook: Callable[..., None]
) -> None:
    usual = stream(torchvision(), source, is_valid_file=lambda path: path.endswith("1.png"))
    hook(str(packed))
    for path in source.rglob("*.png"):
        path.write_bytes(b"")
    assert stream(torchvision(), source, is_valid_file=lambda path: path.endswith("1.png")) == usual


def test_a_data_set_that_has_moved_is_found_by_its_new_folder(
    source: Path, packed: Path, torchvision: Callable[[], Any], hook: Callable[..., None]
) -> None:
    usual = [(index, pixels, label) for index, pixels, label, _ in stream(torchvision(), str(source))]
    elsewhere = source.with_name("elsewhere")
    hook(f"{packed}={elsewhere}")
    assert [(index, pixels, label) for index, pixels, label, _ in stream(torchvision(), elsewhere)] == usual


@pytest.mark.parametrize("read", [Path.read_bytes, lambda path: open(path, mode="rb").read()])  # noqa: SIM115
def test_other_readers_of_the_files_get_the_packed_bytes_and_other_files_are_read_as_ever(
    source: Path, packed: Path, hook: Callable[..., None], read: Callable[[Path], bytes]
) -> None:
    path = source / "ape" / "0.JPG"
    content = path.read_bytes()
    hook(str(packed))
    path.unlink()
    assert read(path) == content
    assert (source / "ape" / "notes.txt").read_text() == "not an image"
    with pytest.raises(FileNotFoundError):
        open(source / "ape" / "1.jpeg", "rb")  # noqa: SIM115
    with open(path, "rb") as file:
        assert (file.name, file.mode) == (path, "rb")
        assert (file.read(3), file.tell(), file.seek(0, 2)) == (content[:3], 3, len(content))
    path.write_text("new")
    assert path.stat().st_size == 3


def test_a_damaged_pack_leaves_the_script_its_own_files(source: Path, packed: Path, hook: Callable[..., None]) -> None:
    path = source / "ape" / "0.JPG"
    content = path.read_bytes()
    hook(str(packed))
    for shard in packed.glob("*.tar"):
        shard.unlink()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "`--packed` must be DIR"),
        ("{packed}=", "`--packed` must be DIR"),
        ("{source}", "is not a complete pack"),
        ("{source}/none", "is not a complete pack"),
    ],
)
def test_what_is_no_pack_is_said_in_one_line(source: Path, packed: Path, text: str, message: str) -> None:
    with pytest.raises(FlatoutError, match=message):
        packed_setting([text.format(packed=packed, source=source)])


def test_a_source_that_changed_is_not_read_from_its_pack(source: Path, packed: Path) -> None:
    write_image(source / "bee" / "3.JPG", size=(9, 9))
    with pytest.raises(FlatoutError, match=r"bee/3\.JPG is not the file that was packed"):
        packed_setting([str(packed)])


def test_rows_are_not_read_unchanged(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n' * 4)
    request = PackRequest(source=tmp_path / "rows.jsonl", folder=tmp_path / "rows", num_ranks=1, num_workers=1)
    pack(request, lambda tasks: on_processes(tasks, 1))
    with pytest.raises(FlatoutError, match="needs samples that are files"):
        packed_setting([str(tmp_path / "rows")])


SCRIPT = """\
import json, sys, torch
from torchvision.datasets import ImageFolder

dataset = ImageFolder(sys.argv[1], transform=lambda image: sum(image.tobytes()))
loader = torch.utils.data.DataLoader(
    dataset, batch_size=5, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(3)
)
stream = [(int(pixels), int(label)) for batch in loader for pixels, label in zip(*batch)]
print(json.dumps(stream))
"""


def test_flatout_run_lets_an_unmodified_script_with_workers_read_the_pack(
    warm: None, tmp_path: Path, source: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    command = [sys.executable, str(tmp_path / "train.py"), str(source)]
    flatout = [sys.executable, "-m", "flatout", "run", "--packed", str(packed), "--", *command]
    usual = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.move(source, source.with_name("gone"))
    from_pack = subprocess.run(flatout, capture_output=True, text=True, check=False)
    assert from_pack.returncode == 0, from_pack.stderr
    assert json.loads(from_pack.stdout) == json.loads(usual.stdout)
    assert len(json.loads(usual.stdout)) == 36
    assert f"the 36 samples of {source} are read from {packed}" in from_pack.stderr
