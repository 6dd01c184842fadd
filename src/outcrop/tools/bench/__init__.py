"""Bench: strategies side by side, each in a process of its own under one memory limit."""
