"""Carry packets between nodes, each at its sender's rate and a delay later.

Usage: relay.py LINK RATE DELAY PID=ADDRESS ..
RATE is in bytes/s and DELAY in seconds, one way. LINK is made in the network namespace of each process PID.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_LONGEST_PACKET = 65_536
_MOST_WAITING_S = 0.05  # for the link; what would wait longer is dropped
_LONGEST_SLEEP_S = 1.0
_libc = ctypes.CDLL(None, use_errno=True)


def open_link(pid: int, name: str) -> int:
    """Make an adapter in the namespace of a process, and return the file of its packets."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(namespace)
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


def carry(links: dict[bytes, int], bytes_per_s: float, delay_s: float) -> None:
    free_at = dict.fromkeys(links.values(), 0.0)
    waiting: list[tuple[float, int, int, bytes]] = []  # due time, order, link, packet
    order = 0
    poll = select.epoll()
    for file in links.values():
        poll.register(file, select.EPOLLIN)
    while True:
        sleep_s = waiting[0][0] - time.monotonic() if waiting else _LONGEST_SLEEP_S
        for file, _ in poll.poll(max(sleep_s, 0.0)):
            packet = os.read(file, _LONGEST_PACKET)
            target = links.get(packet[16:20])  # the destination in an IPv4 header
            now = time.monotonic()
            sent_at = max(free_at[file], now) + len(packet) / bytes_per_s
            if target is None or sent_at - now > _MOST_WAITING_S:
                continue
            free_at[file] = sent_at
            heapq.heappush(waiting, (sent_at + delay_s, order, target, packet))
            order += 1
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            os.write(target, packet)


def main() -> None:
    name, bytes_per_s, delay_s, *ends = sys.argv[1:]
    links = {}
    for end in ends:
        pid, _, address = end.partition("=")
        links[bytes(map(int, address.split(".")))] = open_link(int(pid), name)
    print("ready", flush=True)
    carry(links, float(bytes_per_s), float(delay_s))


if __name__ == "__main__":
    main()
