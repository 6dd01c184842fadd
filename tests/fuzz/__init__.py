"""Fuzz: altered inputs by target -> errors that are ours, in bounded time and memory.

`python -m tests.soak fuzz` runs all targets, `fuzz:manifest` one.
"""
