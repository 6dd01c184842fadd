"""What is counted while a run runs, and the record that is made of it."""
