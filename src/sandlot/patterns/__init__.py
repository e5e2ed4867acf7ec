"""Patterns of text and of paths: read once, for whoever matches them. Pure, and shared by all parts."""
