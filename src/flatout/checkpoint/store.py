"""Write, commit, find, check and remove the checkpoints in a folder. Each tier has one store.

    lock.json                      the job that writes here
    checkpoints.jsonl              a line for each checkpoint: its step, outcome, sizes and times
    step-000001200/                a checkpoint; the name appears once all its files are on the disk
        manifest.json              all files with their sizes and CRC-32, written last
        rank00000.safetensors      this rank's part of the tensors
        rank00000.json             which parts these are, and everything else
    .partial-step-1300-5f3a/       a checkpoint that is being written, or that was interrupted

In the shared folder all ranks write, and the first rank commits. In a local folder the ranks of a host write, and the
first of them commits. Only the rank that commits waits for other ranks, and it waits in the background.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from flatout import __version__
from flatout.checkpoint.files import check_file, read_json, sync_folder, write_file, write_json
from flatout.checkpoint.lock import Lock
from flatout.checkpoint.problems import CheckpointError, DamagedError, as_damage
from flatout.secrets import masked_text

SCHEMA, VERSION = "flatout/checkpoint", 1
MANIFEST, LOG = "manifest.json", "checkpoints.jsonl"
_STEP = re.compile(r"step-(\d{9,})")
_FILE = re.compile(r"rank(\d{5,})(-local)?\.(safetensors|json)")
_POLL_S = 0.01


class Store:
    def __init__(self, folder: Path, *, rank: int, members: Sequence[int]) -> None:
        self.folder = folder
        self.is_leader = rank == members[0]
        self._rank = rank
        self._members = list(members)
        self._lock: Lock | None = None

    # The folder.

    def open(self) -> None:
        """Create the folder and try to write to it; on the leader, also lock it and remove interrupted checkpoints.

        Raises OSError on each rank that cannot write there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.is_leader:
            self._lock = Lock(self.folder)
            for path in list(self.folder.iterdir()):
                if path.name.startswith((".partial-", ".removed-")):
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name.startswith(".replaced-"):
                    self._put_back(path)
                elif path.name.startswith(".trial-"):  # left by a process that was killed
                    with suppress(OSError):
                        path.unlink()
        self._try_to_write()

    def _try_to_write(self) -> None:
        trial = self.folder / f".trial-rank{self._rank:05d}-{os.getpid()}"
        try:
            trial.write_bytes(b"flatout")
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if self.is_leader or not is_full:  # the leader may be about to remove the data that fill the disk
                raise
        finally:
            with suppress(OSError):
                trial.unlink()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, newest first."""
        try:
            found = [_STEP.fullmatch(name) for name in os.listdir(self.folder)]
        except FileNotFoundError:
            return []
        return sorted((int(one[1]) for one in found if one), reverse=True)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    # Writing, in the background.

    def partial(self, step: int, token: str) -> Path:
        return self.folder / f".partial-step-{step}-{token}"

    def write(self, step: int, token: str, files: dict[str, list[Any]], record: dict[str, Any]) -> int:
        """Write this rank's files and then its record, which marks them as complete; return their size in bytes."""
        folder = self.partial(step, token)
        folder.mkdir(parents=True, exist_ok=True)
        written = {name: write_file(folder / name, parts) for name, parts in files.items()}
        name = f"rank{self._rank:05d}.json"
        written[name] = write_json(folder / name, {"rank": self._rank, "step": step, "files": written, **record})
        return sum(one["bytes"] for one in written.values())

    def fail(self, step: int, token: str, reason: str) -> None:
        """Notify the leader that this rank's part will not be written, if the notice can be written."""
        folder = self.partial(step, token)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"rank{self._rank:05d}.failed").write_text(masked_text(reason))

    def commit(self, step: int, token: str, *, timeout_s: float, is_given_up: Callable[[], bool]) -> dict[str, Any]:
        """On the leader: wait for all parts, write the manifest, rename the checkpoint, and return the manifest."""
        folder = self.partial(step, token)
        records = self._wait(folder, timeout_s, is_given_up)
        files: dict[str, dict[str, int]] = {}
        for rank, record in records.items():
            name = f"rank{rank:05d}.json"
            files |= record["files"]
            files[name] = _measured(folder / name)
        manifest = {
            "schema": SCHEMA,
            "version": VERSION,
            "flatout": __version__,
            "torch": torch.__version__,
            "step": step,
            "world_size": records[self._members[0]]["world_size"],
            "ranks": self._members,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "stall_s": max(record["stall_s"] for record in records.values()),
            "files": files,
        }
        write_json(folder / MANIFEST, manifest)
        sync_folder(folder)
        if self._lock is None:  # the folder could not be written to at the start
            self._lock = Lock(self.folder)
        if not self._lock.hold():
            raise CheckpointError(f"{self.folder} has been taken over by another job", hint="end one of the two")
        target, replaced = self.path(step), self.folder / f".replaced-{self.path(step).name}"
        if target.exists():  # this step was saved before
            os.rename(target, replaced)
        try:
            os.rename(folder, target)
        except FileNotFoundError:
            if folder.exists() or not target.exists():
                raise  # otherwise a file server renamed it, lost its reply, and got the request again
        sync_folder(self.folder)
        self._put_back(replaced)
        return manifest

    def discard(self, step: int, token: str, *, late_s: float) -> None:
        """On the leader: remove a partial checkpoint once no rank writes to it; a write would create it again."""
        folder = self.partial(step, token)
        until = time.monotonic() + late_s
        with suppress(OSError):
            while time.monotonic() < until and not self._has_all_ended(set(os.listdir(folder))):
                time.sleep(_POLL_S)
        shutil.rmtree(folder, ignore_errors=True)

    def _has_all_ended(self, names: set[str]) -> bool:
        return all(names & {f"rank{rank:05d}.json", f"rank{rank:05d}.failed"} for rank in self._members)

    def prune(self, keep: int, keep_every: int | None) -> None:
        """Remove all but the last `keep` complete checkpoints and those whose step is a multiple of `keep_every`."""
        num_good = 0
        for step in self.steps():
            if num_good < keep:
                num_good += self._is_complete(step)
            elif not (keep_every and step % keep_every == 0):
                self._set_aside(self.path(step))

    def refuse_after(self, step: int, *, is_forgetting: bool) -> None:
        """Move aside checkpoints newer than the step that the training resumes from: they cannot or must not be used.

        `is_forgetting`: remove checkpoints moved aside earlier, for a small and fast disk.
        """
        newer = [one for one in self.steps() if one > step]
        if newer and is_forgetting:
            for path in list(self.folder.glob("refused-step-*")):
                self._set_aside(path)
        for one in newer:
            with suppress(OSError):
                os.rename(self.path(one), self.folder / f"refused-step-{one}-{time.time_ns()}")

    def log(self, line: dict[str, Any]) -> None:
        with suppress(OSError), (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(masked_text(json.dumps(line)) + "\n")

    # Reading.

    def manifest(self, step: int) -> dict[str, Any]:
        """Return the manifest of a checkpoint. Raise DamagedError if it cannot be read."""
        path = self.path(step)
        manifest = read_json(path / MANIFEST)
        with as_damage(MANIFEST):
            return self._checked_manifest(manifest, path, step)

    def _checked_manifest(self, manifest: dict[str, Any], path: Path, step: int) -> dict[str, Any]:
        if manifest.get("schema") != SCHEMA or manifest.get("step") != step:
            raise DamagedError(f"{MANIFEST} belongs to something else")
        if manifest["version"] > VERSION:
            raise CheckpointError(
                f"{path} has format version {manifest['version']}, but this Flatout reads versions up to {VERSION}",
                hint=f"use Flatout {manifest['flatout']} or later",
            )
        if not all(_FILE.fullmatch(name) for name in manifest["files"]):
            raise DamagedError(f"{MANIFEST} names files that no checkpoint has")
        if not all({"bytes", "crc32"} <= set(one) for one in manifest["files"].values()):
            raise DamagedError(f"{MANIFEST} has files without a size or a checksum")
        if not all(isinstance(rank, int) and rank >= 0 for rank in manifest["ranks"]) or not manifest["ranks"]:
            raise DamagedError(f"{MANIFEST} names no ranks")
        return manifest

    def check(self, step: int, place: int, num_places: int) -> None:
        """Check every `num_places`-th file, so that the ranks together check all. Raise DamagedError for a bad file."""
        for name, expected in sorted(self.manifest(step)["files"].items())[place::num_places]:
            check_file(self.path(step) / name, expected)

    def records(self, step: int) -> dict[int, dict[str, Any]]:
        """Return, by rank, the parts of tensors in its files, and its values."""
        path, manifest = self.path(step), self.manifest(step)
        records = {rank: read_json(path / f"rank{rank:05d}.json") for rank in manifest["ranks"]}
        for rank, record in records.items():
            if unknown := set(record["tensors"]) - set(manifest["files"]):
                raise DamagedError(f"rank{rank:05d}.json names {min(unknown)}, which {MANIFEST} does not")
        return records

    # Helpers.

    def _wait(self, folder: Path, timeout_s: float, is_given_up: Callable[[], bool]) -> dict[int, dict[str, Any]]:
        until = time.monotonic() + timeout_s
        records: dict[int, dict[str, Any]] = {}
        while True:
            names = set(os.listdir(folder))
            for rank in self._members:
                if rank not in records and f"rank{rank:05d}.json" in names:
                    records[rank] = read_json(folder / f"rank{rank:05d}.json")
                if f"rank{rank:05d}.failed" in names:
                    reason = (folder / f"rank{rank:05d}.failed").read_text()
                    raise CheckpointError(f"rank {rank} could not write its part: {reason}")
            if len(records) == len(self._members):
                return records
            missing = min(set(self._members) - set(records))
            if is_given_up():
                raise CheckpointError(f"rank {missing} has not written its part")
            if time.monotonic() > until:
                raise CheckpointError(
                    f"rank {missing} has not written its part within {timeout_s:g} s",
                    hint="increase timeout_s to wait longer",
                )
            time.sleep(_POLL_S)

    def _put_back(self, replaced: Path) -> None:
        """Clean up an interrupted replacement: remove the old checkpoint if the new one exists, else rename it back."""
        target = self.folder / replaced.name.removeprefix(".replaced-")
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        elif replaced.exists():
            os.rename(replaced, target)

    def _is_complete(self, step: int) -> bool:
        try:
            files = self.manifest(step)["files"]
            return all((self.path(step) / name).stat().st_size == one["bytes"] for name, one in files.items())
        except (CheckpointError, OSError):
            return False

    def _set_aside(self, path: Path) -> None:
        """Rename a folder and then remove it, so that a half-removed folder is never mistaken for a checkpoint."""
        removed = path.with_name(f".removed-{path.name}-{time.time_ns()}")
        with suppress(OSError):
            os.rename(path, removed)
            shutil.rmtree(removed, ignore_errors=True)


def _measured(path: Path) -> dict[str, int]:
    data = path.read_bytes()
    return {"bytes": len(data), "crc32": zlib.crc32(data)}
