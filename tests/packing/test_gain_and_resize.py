"""What packing is said to bring, and which images are made smaller."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from tests.packing.images import image_folder

from flatout.packing.gain import judged, packing_gain
from flatout.packing.request import PackRequest
from flatout.packing.resize import resized
from flatout.packing.sources import read_source
from flatout.probe.mounts import MountPoint
from flatout.records.packing import OpenTimes
from flatout.report.packing_text import gain_sentence


def times(open_s: float, read_s: float) -> OpenTimes:
    return OpenTimes(num_files=10, open_s=open_s, read_s=read_s, mean_bytes=1e5)


@pytest.mark.parametrize(
    ("kind", "open_s", "read_s", "cause", "factor"),
    [
        ("nfs4", 3e-3, 1e-3, "metadata", 4.0),
        ("lustre", 0.2e-3, 0.8e-3, "metadata", 1.25),  # a fifth is the least
        ("lustre", 0.199e-3, 0.801e-3, "few-metadata", None),
        ("ext4", 3e-3, 1e-3, "local", None),
        ("xfs", 1e-5, 1e-5, "local", None),
        ("", 3e-3, 1e-3, "unknown", None),
    ],
)
def test_packing_brings_something_only_where_a_network_is_asked_for_metadata(
    kind: str, open_s: float, read_s: float, cause: str, factor: float | None
) -> None:
    gain = judged(kind, times(open_s, read_s))
    assert gain.cause == cause
    assert gain.factor == (pytest.approx(factor) if factor is not None else None)
    brings_nothing = "brings nothing" in gain_sentence(gain)
    assert brings_nothing == (cause == "local")


def test_the_files_are_opened_and_read_where_they_are(tmp_path: Path) -> None:
    listing = read_source(PackRequest(source=image_folder(tmp_path / "images"), folder=tmp_path / "packed"))
    gain = packing_gain(listing, [MountPoint("/", "ext4"), MountPoint(str(tmp_path), "nfs4")])
    assert gain.file_system == "nfs4"
    assert gain.times is not None
    sizes = [Path(str(tmp_path / "images" / sample.name)).stat().st_size for sample in listing.samples]
    assert gain.times.num_files == 36
    assert gain.times.mean_bytes == pytest.approx(sum(sizes) / 36)


def image(size: tuple[int, int], mode: str = "RGB", kind: str = "JPEG", **options: object) -> Image.Image:
    target = io.BytesIO()
    Image.new(mode, size, 100 if mode in ("L", "P") else None).save(target, kind, **options)
    opened = Image.open(target)
    opened.load()
    return opened


@pytest.mark.parametrize(
    ("size", "smaller"),
    [
        ((448, 600), (256, 343)),  # the shorter side is twice the crop, and becomes 8/7 of it
        ((447, 600), None),
        ((2000, 448), (1143, 256)),
        ((448, 448), (256, 256)),
    ],
)
def test_an_image_is_made_smaller_if_its_shorter_side_is_twice_the_crop(
    size: tuple[int, int], smaller: tuple[int, int] | None
) -> None:
    data = resized(image(size), 224)
    assert (Image.open(io.BytesIO(data)).size if data is not None else None) == smaller


@pytest.mark.parametrize(("mode", "kind"), [("L", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("RGB", "WEBP")])
def test_a_smaller_image_keeps_its_format(mode: str, kind: str) -> None:
    data = resized(image((100, 80), mode, kind), 20)
    assert data is not None
    small = Image.open(io.BytesIO(data))
    assert small.format == kind
    assert min(small.size) == 23


def test_the_orientation_of_a_photograph_stays(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = resized(image((100, 80), exif=exif), 20)
    assert data is not None
    assert Image.open(io.BytesIO(data)).getexif()[0x0112] == 6
