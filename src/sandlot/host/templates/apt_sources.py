"""The machine's package sources without those whose address carries a name, a password or a token."""

import re
from typing import Final

# Anything before an @ in the address part: `user:password@`, and a lone token too.
_CREDENTIALS: Final = re.compile(r"://[^/\s]*@")
_STANZA_GAP: Final = re.compile(r"\n(?:[ \t]*\n)+")


def without_credentials(text: str, suffix: str) -> tuple[str, int]:
    """The text of a `.list` (by line) or `.sources` (by stanza) file to keep, and how many parts were dropped.

    Comments count: a source that was commented out keeps its password.
    """
    if suffix == ".sources":
        parts = [f"{stanza.strip(chr(10))}\n" for stanza in _STANZA_GAP.split(text) if stanza.strip()]
        kept = [stanza for stanza in parts if not _CREDENTIALS.search(stanza)]
        return "\n".join(kept), len(parts) - len(kept)
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if not _CREDENTIALS.search(line)]
    return "".join(kept), len(lines) - len(kept)
