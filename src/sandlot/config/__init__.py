"""What a user may set, from the environment; the only place that reads it."""
