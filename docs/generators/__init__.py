"""The parts of the docs that are made from the code when the site is built: one module for each kind of page."""

from __future__ import annotations
