"""The engine: many sessions on one machine. `service.py` is the only file that sees all of it."""
