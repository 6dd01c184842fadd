"""The ledger: what each strategy does, and what earlier versions left on disk, held to from now on.

`ledger.json` has, for small graphs and every strategy and option, digests of batches, what was
read, hit and charged, the least memory and the names of layouts; `saved.tar.xz` has stores with
layouts, half-made packs, generations of killed runs, positions, a checkpoint and records.
`test_ledger.py` and `test_saved.py` do everything again: batches must be equal, the rest equal or
better. Both files are written by `python -m tests.ledger.record`, and written again only on
purpose: where a change is meant to make other batches or to cost more, or when saved things of a
newer version are to be kept.
"""
