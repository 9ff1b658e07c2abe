"""Training: the loop, its configuration, its callbacks and what it records."""
