"""Placement: the groups of a layout and a network -> an order of ranks, and the bytes that each link carries."""
