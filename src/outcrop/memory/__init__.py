"""One memory number: facts, charges by phase, the budget, batches in its slabs."""
