"""Ingest: other formats, and nothing at all (synthetic graphs) -> stores, in bounded memory.

To add a format, write a module with a function that returns a `GraphSource` (source.py) and a
command in cli/import_.py; sorting, checking, checksums and atomic creation come with it.
"""
