"""Names of the runner's stages, as records have them."""

from __future__ import annotations

WINDOW = "window"
"""Turns to the next window: what it waits for has stages of its own."""
SAMPLE, GRAPH_LOAD, GATHER = "sample", "graph load", "gather"
