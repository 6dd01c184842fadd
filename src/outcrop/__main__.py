"""python -m outcrop: the command line."""

from outcrop.cli import main

main()
