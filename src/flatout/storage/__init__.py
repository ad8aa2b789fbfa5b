"""What the file systems of a host did for a job: counters of their clients -> use of each mount -> what limits it.

snapshots  the file of a recording, or folders with copies of /proc and /sys -> texts by path and time
counts     one time's counters of one mount, and the difference between two
nfs, lustre, juicefs, disks, groups   the formats of the texts
use        texts -> `HostStorage`
verdict    the use of a mount -> what limits its reads
"""

from __future__ import annotations
