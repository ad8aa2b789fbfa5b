"""The traces of a job of any size, made from those of a small job that has one process group."""

from __future__ import annotations

import gzip
import random
import re
import tarfile
from pathlib import Path

GPUS_PER_NODE = 8
MAX_LATE_US = 20
# A longer list PyTorch writes as its first 29 ranks and "..." (kTruncatLength in torch/csrc/profiler/util.cpp).
MAX_LISTED_RANKS = 30


class Template:
    """The trace of one rank, cut where its text depends on the rank or on the size of the job."""

    def __init__(self, text: str, rank: int, world_size: int) -> None:
        listed = re.escape(str(list(range(world_size))))
        depends = re.compile(
            rf'(?P<job>"rank": {rank}, "world_size": {world_size}\b)'
            rf'|(?P<group>"pg_size": {world_size}, "ranks": {listed})'
            rf'|(?P<members>"Process Group Ranks": "{listed}")'
            rf'|(?P<size>"Group size": {world_size}\b)'
            rf'|(?P<rank>"Rank": {rank}\b)'
            rf'|(?P<device>"device": {rank}\b)'
            rf'|(?P<kernel>"name": "nccl[^"]*", "pid": {rank}\b)(?P<stream>, "tid": \d+,\s*)'
            r'"ts": (?P<start>[\d.]+), "dur": (?P<length>[\d.]+)'
            rf'|(?P<process>"pid": {rank}\b)'
        )
        self._pieces: list[str | re.Match[str]] = []
        at = 0
        for match in depends.finditer(text):
            self._pieces += [text[at : match.start()], match]
            at = match.end()
        self._pieces.append(text[at:])

    def text(self, rank: int, world_size: int) -> str:
        """The trace as another rank's. Its communication kernels begin up to 20 us later, and end when they did."""
        ranks = list(range(world_size))
        long = world_size > MAX_LISTED_RANKS
        members = f"[{', '.join(map(str, ranks[: MAX_LISTED_RANKS - 1]))}, ...]" if long else str(ranks)
        written = {
            "job": f'"rank": {rank}, "world_size": {world_size}',
            "group": f'"pg_size": {world_size}, "ranks": {ranks}',
            "members": f'"Process Group Ranks": "{members}"',
            "size": f'"Group size": {world_size}',
            "rank": f'"Rank": {rank}',
            "device": f'"device": {rank % GPUS_PER_NODE}',
            "process": f'"pid": {rank % GPUS_PER_NODE}',
        }
        random_late = random.Random(rank)

        def piece(match: re.Match[str]) -> str:
            kind = next(kind for kind, found in match.groupdict().items() if found is not None)
            if kind != "kernel":
                return written[kind]
            late = random_late.uniform(0, min(MAX_LATE_US, float(match["length"]) / 2))
            name = match["kernel"].rpartition('"pid"')[0] + written["process"]
            times = f'"ts": {float(match["start"]) + late:.3f}, "dur": {float(match["length"]) - late:.3f}'
            return name + match["stream"] + times

        return "".join(p if isinstance(p, str) else piece(p) for p in self._pieces)


class Job:
    """A small job from an archive of its traces, from which larger ones are made."""

    def __init__(self, archive: Path) -> None:
        texts = {}
        with tarfile.open(archive) as files:
            for member in files:
                found = re.search(r"rank(\d+)\.json$", member.name)
                content = files.extractfile(member)
                if found and content:
                    texts[int(found[1])] = content.read().decode()
        self._templates = [Template(text, rank, len(texts)) for rank, text in sorted(texts.items())]

    def write(self, folder: Path, world_size: int) -> int:
        """Write `world_size` traces, each made from one of the small job's in turn; their bytes on disk."""
        num_bytes = 0
        for rank in range(world_size):
            template = self._templates[rank % len(self._templates)]
            packed = gzip.compress(template.text(rank, world_size).encode(), compresslevel=1)
            num_bytes += (folder / f"rank{rank}.json.gz").write_bytes(packed)
        return num_bytes
