"""Report: the records of runs -> a table on the terminal, and one HTML file that needs no network.

`load(paths)` reads and checks, `write_report(records, bench, path)` draws, `print_report` prints.
"""

from outcrop.tools.report.html import render, write_report
from outcrop.tools.report.load import Loaded, load
from outcrop.tools.report.summary import Comparison, compare
from outcrop.tools.report.terminal import print_report

__all__ = ["Comparison", "Loaded", "compare", "load", "print_report", "render", "write_report"]
