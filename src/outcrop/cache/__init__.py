"""Caches: who stays in memory. Policies know ids and slots, never files of the graph."""
