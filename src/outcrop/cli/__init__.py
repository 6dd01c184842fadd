"""The command line: one file per command."""

from outcrop.cli.app import app, main

__all__ = ["app", "main"]
