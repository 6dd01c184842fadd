"""Long random trials that print figures: make soak. Not collected by pytest."""
