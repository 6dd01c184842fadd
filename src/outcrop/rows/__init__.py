"""Where the feature rows of batches come from."""
