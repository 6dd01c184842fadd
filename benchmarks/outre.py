"""The tables of OUTRE (VLDB 2024): partitions, and embeddings that are used again.

    python benchmarks/outre.py stages --graph standard
    python benchmarks/outre.py prepare --graph community-standard --rounds 3
    python benchmarks/outre.py accuracy partitioners --seeds 10 --data ../shared/data
    python benchmarks/outre.py staleness --seeds 10 --jobs 16 --data ../shared/data --work /tmp/work
    python benchmarks/outre.py embeddings
    python benchmarks/outre.py fennel --page

Each is a page, benchmarks/results/outre-NAME[-GRAPH].md, written after each measurement. stages,
prepare, orders, embeddings, layers, alpha and importance are runs of strategies, with the options
of agnes.py; the others are processes of their own on graphs of their own (--graph tiny: on small
ones, to try the program; other graphs change nothing there). --jobs does trainings side by side:
scores do not depend on it, seconds do. What was measured lies in bench-data/outre
(--work) and is not measured again; remove a file or folder there to measure it anew. It needs an
idle machine, root for memory cages, and the package pymetis: without it, METIS has no cells.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from machine import check_results
from outre_figures import OUTRE
from outre_tables import TABLES, make_table
from pages import figure_parser


def page_file(name: str, given: argparse.Namespace) -> Path:
    if name in TABLES and given.graph == "tiny":
        return Path(given.results) / f"outre-{name}-tiny.md"
    return OUTRE.file(name, given)


def main() -> None:
    parser = figure_parser(__doc__, OUTRE, *TABLES)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each training")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="trainings of tables at a time, on one thread each")  # fmt: skip
    given = parser.parse_args()
    check_results(*(page_file(name, given) for name in given.figures), dirty=given.dirty)
    for folder in (given.work, given.results):
        folder.mkdir(parents=True, exist_ok=True)
    for name in given.figures:
        if name in TABLES:
            make_table(name, given, page_file(name, given))
        else:
            OUTRE.make(name, given)


if __name__ == "__main__":
    main()
