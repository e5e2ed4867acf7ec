"""The form of one attack: what is tried inside a session, what must be seen, and which defence stands in its way."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sandlot.model import CallRequest, TerminalSize
from tests.conftest import Ran
from tests.security.stage import ROOT, USER

ATTEMPT = "/usr/local/bin/attempt"  # attempt.c, as the session sees it

NO_FACTS: Mapping[str, str] = MappingProxyType({})

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
    """`script` and `seen` may name facts of the host as %marker%; `facts.py` knows them."""

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
            timeout_s=20,
            terminal=TerminalSize() if self.terminal else None,
        )

    def check(self, ran: Ran, facts: Mapping[str, str] = NO_FACTS) -> None:
        said = ran.stdout.decode().replace("\r\n", "\n").strip()
        assert said == fill(self.seen, facts), f"{self.reason}: {ran}"
        # Silence proves something only when the script went through.
        assert self.seen or not ran.stderr, ran


def fill(text: str, facts: Mapping[str, str]) -> str:
    for name, value in facts.items():
        text = text.replace(f"%{name}%", value)
    return text


def attempt(name: str, words: str, seen: str, reason: str, users: tuple[str, ...] = (ROOT, USER)) -> Row:
    """One run of the program `attempt`."""
    return Row(name, f"{ATTEMPT} {words}", seen, reason, users)
