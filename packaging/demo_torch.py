"""Let `make demo` use a torch that the user's Python already has, or say what is downloaded before it is.

    PYTHON packaging/demo_torch.py VENV_PYTHON

The user's Python runs it. If that has torch 2.4 or newer, and the version of the environment's Python, a `.pth` file
makes its packages visible in the environment, after the environment's. Otherwise the download is named with its size.
The exit code is 0 if torch is there, and 3 if it is to be installed, as with DEMO_TORCH=install.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

LEAST = (2, 4)
PINNED = "torch==2.13.0"
INSTALL = 3


def own_torch() -> tuple[str, Path] | None:
    """Return the version of this Python's torch, and the folder that it is in; None without one that is new enough."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    numbers = torch.version.split("+")[0].split(".")[:2]
    is_new_enough = all(number.isdecimal() for number in numbers) and tuple(map(int, numbers)) >= LEAST
    return (torch.version, Path(str(torch.locate_file("")))) if is_new_enough else None


def site_packages(python: str) -> tuple[Path, tuple[int, int]]:
    """Return the environment's folder of packages, and the version of its Python."""
    program = "import sys, sysconfig; print(sysconfig.get_path('purelib')); print(*sys.version_info[:2])"
    folder, version = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    major, minor = version.split()
    return Path(folder), (int(major), int(minor))


def downloads(python: str) -> list[tuple[str, int | None]]:
    """Return the name and the bytes of each file that pip would download for torch; None where the size is unknown."""
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check", "--report", "-"]
    done = subprocess.run([*command, PINNED], capture_output=True, text=True)
    if done.returncode != 0:
        return []
    urls = [package["download_info"]["url"] for package in json.loads(done.stdout)["install"]]
    return [(url.rpartition("/")[2].partition("#")[0], _size(url)) for url in urls]


def _size(url: str) -> int | None:
    try:
        if url.startswith("file://"):
            return Path(urllib.request.url2pathname(url.removeprefix("file://"))).stat().st_size
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def download_sentence(files: list[tuple[str, int | None]]) -> str:
    """Return what is about to be downloaded, and how large it is."""
    if not files:
        return f"make demo installs {PINNED}. How large that is, is unknown; on Linux it can be several GB, for CUDA"
    known = [size for _, size in files if size is not None]
    num_unknown = len(files) - len(known)
    largest = max(files, key=lambda file: file[1] or 0)
    more = f", and {num_unknown} of unknown size" if num_unknown else ""
    size = f"{sum(known) / 1e9:.1f} GB" if sum(known) >= 1e9 else f"{sum(known) / 1e6:.0f} MB"
    return (
        f"make demo downloads {PINNED} and what it needs: {len(files)} files, {size}{more}; the largest is {largest[0]}"
    )


def main() -> int:
    python = sys.argv[1]
    folder, version = site_packages(python)
    visible = folder / "torch_of_the_user.pth"
    visible.unlink(missing_ok=True)
    found = own_torch()
    is_wanted = os.environ.get("DEMO_TORCH") != "install"
    if found is not None and is_wanted and version == sys.version_info[:2]:
        visible.write_text(f"{found[1]}\n")
        print(f"make demo uses the torch {found[0]} of {sys.executable}")
        return 0
    print(download_sentence(downloads(python)), flush=True)
    print("to use a torch that you have: make demo PYTHON=/path/to/its/python", flush=True)
    return INSTALL


if __name__ == "__main__":
    sys.exit(main())
