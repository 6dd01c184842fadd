"""The store: what lies on disk, how it is made, opened, checked and extended."""
