"""Segments: rows that several batches of a run of them want, stored once and read by pages."""
