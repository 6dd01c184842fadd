"""Report: the records of runs -> who was how fast, and what each read."""

from outcrop.report.load import Loaded, load
from outcrop.report.summary import Comparison, compare
from outcrop.report.terminal import print_report

__all__ = ["Comparison", "Loaded", "compare", "load", "print_report"]
