"""Tools that touch the session's files with the host's own reach."""
