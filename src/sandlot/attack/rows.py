"""The form of one attack: what is tried inside a session, what must be seen, and which defence stands in its way."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sandlot.model import CallRequest, TerminalSize

ROOT = "root"
USER = "user"
ATTEMPT = "/usr/local/bin/attempt"  # guest/attack/attempt.c, as the session sees it

NO_FACTS: Mapping[str, str] = MappingProxyType({})
ROW_TIMEOUT_S = 60.0

PRELUDE = """
import ctypes, errno, os, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def tell(act):
    try: act()
    except OSError as error: print(errno.errorcode[error.errno])
    else: print("reached")
"""


@dataclass(frozen=True, slots=True)
class Row:
    """`script` and `seen` may name facts of the host as %marker%; `bait.py` knows them."""

    name: str
    script: str
    seen: str
    reason: str
    users: tuple[str, ...] = (ROOT, USER)
    python: bool = False
    terminal: bool = False

    def request(self, session: str, user: str, facts: Mapping[str, str] = NO_FACTS) -> CallRequest:
        script = fill(self.script, facts)
        return CallRequest(
            session,
            ("python3", "-c", PRELUDE + script) if self.python else ("sh", "-c", script),
            user=user,
            timeout_s=ROW_TIMEOUT_S,
            terminal=TerminalSize() if self.terminal else None,
        )

    def wrong(self, stdout: bytes, stderr: bytes, facts: Mapping[str, str] = NO_FACTS) -> str:
        """What is wrong with what was seen; empty when the defence held."""
        said = stdout.decode(errors="replace").replace("\r\n", "\n").strip()
        if said != fill(self.seen, facts):
            return f"{self.reason}; yet it said {said[:200]!r} {stderr[-200:]!r}"
        # Silence proves something only when the script went through.
        return "" if self.seen or not stderr else f"it could not be tried: {stderr[-200:]!r}"


def fill(text: str, facts: Mapping[str, str]) -> str:
    for name, value in facts.items():
        text = text.replace(f"%{name}%", value)
    return text


def attempt(name: str, words: str, seen: str, reason: str, users: tuple[str, ...] = (ROOT, USER)) -> Row:
    """One run of the program `attempt`."""
    return Row(name, f"{ATTEMPT} {words}", seen, reason, users)
