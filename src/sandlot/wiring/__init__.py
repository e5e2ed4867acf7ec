"""The only place that sees all parts."""
