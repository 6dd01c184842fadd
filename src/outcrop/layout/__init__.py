"""Derived layouts: what is made of a store once, kept beside it and found again."""
