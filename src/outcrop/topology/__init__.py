"""Where neighbour lists are, for samplers to draw from."""
