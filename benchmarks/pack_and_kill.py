"""Pack 50,000 small images, killing the packing at three places, and read them by an unmodified ImageFolder script.

    python benchmarks/pack_and_kill.py --out benchmarks/results/pack_and_kill.json

It packs the images once without a break and once with `kill -9` of `flatout data pack` after about 10 %, 50 % and 90 %
of the shards, while shards are being written by several processes. It then compares the two packs file by file, each
sample with its source, and the stream of (index, label, pixels) of a script that reads an `ImageFolder` through a
shuffling DataLoader with workers: from the source, and from the pack after the source was moved away. The ImageFolder
is the stand-in of the tests where torchvision is not installed; the result says which. At the end one file is damaged,
and the refusal must name it.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

ROOT = Path(__file__).parents[1]
STAND_IN = ROOT / "tests" / "packing" / "stand_in"
KILL_AT = (0.1, 0.5, 0.9)  # shares of the shards
SCRIPT = """\
import hashlib, sys, torch
from torchvision.datasets import ImageFolder

dataset = ImageFolder(sys.argv[1], transform=lambda image: hashlib.sha256(image.tobytes()).hexdigest())
numbered = torch.utils.data.StackDataset(torch.arange(len(dataset)), dataset)
generator = torch.Generator().manual_seed(7)
loader = torch.utils.data.DataLoader(numbered, batch_size=64, shuffle=True, num_workers=2, generator=generator)
stream = hashlib.sha256()
count = 0
for indices, (pixels, labels) in loader:
    for index, checksum, label in zip(indices, pixels, labels):
        stream.update(f"{int(index)} {int(label)} {checksum}\\n".encode())
        count += 1
print(count, stream.hexdigest())
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2, help="processes that pack")
    parser.add_argument("--folder", type=Path, default=None, help="where the images are written [default: temporary]")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="pack-"))
    result = run(folder, arguments.images, arguments.classes, arguments.jobs)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    if arguments.folder is None:
        shutil.rmtree(folder)
    return 0 if result["is_right"] else 1


def run(folder: Path, num_images: int, num_classes: int, num_jobs: int) -> dict[str, Any]:
    source = folder / "images"
    write_images(source, num_images, num_classes)
    whole_s = timed(lambda: packed(source, folder / "whole", num_jobs))
    num_shards = len(list((folder / "whole").glob("*.tar")))
    kills = [kill_at(source, folder / "killed", num_jobs, round(share * num_shards)) for share in KILL_AT]
    resumed_s = timed(lambda: packed(source, folder / "killed", num_jobs))
    usual = stream(source, None)
    comparison = filecmp.dircmp(folder / "whole", folder / "killed")
    names = sorted(path.name for path in (folder / "whole").iterdir())
    _, mismatched, missing = filecmp.cmpfiles(folder / "whole", folder / "killed", names, shallow=False)
    num_equal = equal_samples(source, folder / "killed")
    moved = source.with_name("moved")
    source.rename(moved)
    from_pack = stream(source, folder / "killed")
    moved.rename(source)
    refusal = damaged(source, folder / "damaged", num_jobs)
    are_equal = not (mismatched or missing or comparison.left_only or comparison.right_only)
    return {
        "num_images": num_images,
        "num_shards": num_shards,
        "processes": num_jobs,
        "image_folder": "the stand-in of the tests" if find_spec("torchvision") is None else "torchvision",
        "without_a_break_s": round(whole_s, 1),
        "kills": kills,
        "last_run_s": round(resumed_s, 1),
        "packs_are_bit_equal": are_equal,
        "samples_bit_equal_to_their_source": num_equal,
        "stream_of_source": usual,
        "stream_of_pack_without_source": from_pack,
        "refusal_of_a_damaged_file": refusal,
        "is_right": are_equal
        and num_equal == num_images
        and usual == from_pack
        and usual.startswith(f"{num_images} ")
        and len({kill["shards_when_killed"] for kill in kills}) == len(KILL_AT)
        and not any(kill["processes_left"] for kill in kills)
        and "class050/0000000.jpg: it cannot be decoded" in refusal,
    }


def write_images(source: Path, num_images: int, num_classes: int) -> None:
    """Write small JPEG files, sorted into classes, with random pixels in blocks so that none equals another."""
    drawn = random.Random(1)
    for number in range(num_images):
        path = source / f"class{number % num_classes:03d}" / f"{number // num_classes:07d}.jpg"
        if number < num_classes:
            path.parent.mkdir(parents=True, exist_ok=True)
        blocks = Image.frombytes("RGB", (8, 8), drawn.randbytes(192))
        blocks.resize((48, 48)).save(path, quality=85)


def command(source: Path, target: Path, num_jobs: int) -> list[str]:
    words = ["data", "pack", str(source), str(target), "--ranks", "8", "--workers", "4", "--jobs", str(num_jobs)]
    return [sys.executable, "-m", "flatout", *words]


def packed(source: Path, target: Path, num_jobs: int) -> None:
    subprocess.run(command(source, target, num_jobs), check=True, stdout=subprocess.DEVNULL)


def kill_at(source: Path, target: Path, num_jobs: int, num_shards: int) -> dict[str, int]:
    """Start the packing, and kill it with SIGKILL when it has finished so many shards."""
    process = subprocess.Popen(
        command(source, target, num_jobs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while len(list(target.glob("*.tar"))) < num_shards and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    left = [each for each in psutil.process_iter(["status"]) if is_left(each, process.pid)]
    return {
        "shards_when_killed": len(list(target.glob("*.tar"))),
        "incomplete_files_left": len(list(target.glob(".packing/*.part"))),
        "processes_left": len(left),
    }


def is_left(process: psutil.Process, group: int) -> bool:
    """Whether a process of the group still runs. One that has ended stays listed until its new parent asks for it."""
    try:
        return os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE
    except ProcessLookupError:
        return False


def equal_samples(source: Path, target: Path) -> int:
    """Return how many samples in the shards equal the file that is their index-th, by an independent reading of tar."""
    files = sorted(path for path in source.rglob("*.jpg"))
    count = 0
    for shard in target.glob("*.tar"):
        with tarfile.open(shard) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is None or not member.name.endswith(".jpg"):
                    continue
                file = files[int(member.name.partition(".")[0])]
                count += hashlib.sha256(content.read()).digest() == hashlib.sha256(file.read_bytes()).digest()
    return count


def stream(source: Path, target: Path | None) -> str:
    """Return the number of samples and the checksum of what the script sees, from the source or from a pack."""
    script = [sys.executable, "-c", SCRIPT, str(source)]
    if target is not None:
        script = [sys.executable, "-m", "flatout", "run", "--packed", str(target), "--", *script]
    paths = [] if find_spec("torchvision") is not None else [str(STAND_IN)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def damaged(source: Path, target: Path, num_jobs: int) -> str:
    """Return the first line of the refusal of a source with a file that is cut off."""
    path = source / "class050" / "0000000.jpg"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    done = subprocess.run(command(source, target, num_jobs), capture_output=True, text=True, check=False)
    path.write_bytes(content)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    return lines[0] if lines and done.returncode == 2 else done.stderr


def timed(action: Any) -> float:
    before = time.monotonic()
    action()
    return time.monotonic() - before


if __name__ == "__main__":
    sys.exit(main())
