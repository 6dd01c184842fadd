"""Around the data path: benchmarks, profiles, reports, diagnosis."""
