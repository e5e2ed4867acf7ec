"""The terminal that the program itself was started on."""

import os
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager

from sandlot.cli.screen import is_terminal
from sandlot.model import TerminalSize


def terminal_size() -> TerminalSize:
    """As large as ours, or the usual one when there is none."""
    for stream in (sys.stdout, sys.stdin, sys.stderr):
        if is_terminal(stream):
            size = os.get_terminal_size(stream.fileno())
            if size.lines and size.columns:
                return TerminalSize(size.lines, size.columns)
    return TerminalSize()


@contextmanager
def raw() -> Generator[None]:
    """Every key goes to the command, Ctrl-C too; whatever happens, the terminal is given back as it was."""
    if not is_terminal(sys.stdin):
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
