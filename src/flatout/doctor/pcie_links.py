"""Check whether PCIe devices use all lanes and the full speed of their links."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.records.doctor import PcieLink


class LinkComparison:
    """The current values of links compared with the maximum that the devices report."""

    def __init__(self, links: Mapping[str, PcieLink | None]) -> None:
        self.narrow: dict[str, str] = {}  # address -> `x8 of x16`
        self.slow: dict[str, str] = {}  # address -> `8 of 16 GT/s`; a link with too few lanes is not among these
        self.lowest_share = 1.0  # of the bandwidth that a link could have
        self.num_read = 0
        for address, link in links.items():
            if link is not None and self._compare(address, link):
                self.num_read += 1
        self.num_missing = len(links) - self.num_read

    def _compare(self, address: str, link: PcieLink) -> bool:
        """Compare a link; return whether it has enough values for that."""
        if link.width is None or link.max_width is None:
            return False
        if link.width < link.max_width:
            self.narrow[address] = f"x{link.width} of x{link.max_width}"
            self.lowest_share = min(self.lowest_share, link.width / link.max_width)
            return True
        if link.speed_gt_per_s is None or link.max_speed_gt_per_s is None:
            return False
        if link.speed_gt_per_s < link.max_speed_gt_per_s:
            self.slow[address] = f"{link.speed_gt_per_s:g} of {link.max_speed_gt_per_s:g} GT/s"
            self.lowest_share = min(self.lowest_share, link.speed_gt_per_s / link.max_speed_gt_per_s)
        return True
