"""The options that describe the network between nodes, for `flatout plan` and `flatout plan place`."""

from __future__ import annotations

import typer

from flatout.cli.values import amount, whole_number

FABRIC = typer.Option(metavar="KIND", help="Network between the nodes: fat-tree, rail (rail-optimised), ring or torus.")
OVERSUBSCRIPTION = amount(
    metavar="RATIO", least=1.0, most=64.0, help="Total rate of a leaf switch's ports to nodes / that of its uplinks."
)
LEAF_NODES = whole_number(least=1, most=4096, help="Nodes per leaf switch (with rails: per group of leaf switches).")
TORUS = typer.Option(metavar="SHAPE", help="For a torus: nodes in each dimension, e.g. 4x4.")
