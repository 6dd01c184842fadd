"""Report: the records of runs -> a table on the terminal, and one HTML file that needs no network.

`load(paths)` reads and checks, `write_report(records, bench, path)` draws, `print_report` prints.
"""

from outcrop.report.html import render, write_report
from outcrop.report.load import Loaded, load
from outcrop.report.summary import Comparison, compare
from outcrop.report.terminal import print_report

__all__ = ["Comparison", "Loaded", "compare", "load", "print_report", "render", "write_report"]
