"""Tools that run a program in the session."""
