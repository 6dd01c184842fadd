"""Packing: for every batch of a trace, the rows that are not cached, one after the other."""
