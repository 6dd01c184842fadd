"""Sample: the order of seeds, the samplers, and the trace of what they sampled."""
