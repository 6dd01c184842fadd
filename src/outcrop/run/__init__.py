"""A plan at work: tasks -> batches, through stages on threads."""
