"""Who did what to which session: a chain of records in a data directory, and an anchor apart from it."""
