"""What lies ahead of the loop: batches that are sampled, and rows that are chosen, before."""
