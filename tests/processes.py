"""Processes that a test starts and signals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process whose output is piped unless options say otherwise; it does not outlive the test,
    whose failure would else be that of others, too."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **(pipes | options)) as process:
        try:
            yield process
        finally:
            process.kill()


def program(code: str, *arguments: str) -> list[str]:
    """The command that runs a program in Python."""
    return [sys.executable, "-c", code, *arguments]
