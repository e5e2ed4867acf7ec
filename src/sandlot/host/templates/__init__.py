"""What a session starts from: read-only root filesystems, prepared once and mounted below every session.

To add a kind of template, add one file here that builds `<into>/root` beside `<into>/template.json` in a partial
sibling and renames it whole, as `builtin.py` does; nothing of a half-built template may ever be seen by a session.
"""
