"""Does something as an ordinary user, in a process of its own. A program would not do: who is nobody cannot read the
Python of whoever runs the tests."""

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from sandlot.config.settings import load

NOBODY = 65534


@contextmanager
def own_folder() -> Generator[Path]:
    """One that an ordinary user can reach and write, with a copy of the guest program beside it."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-nobody-"))
    try:
        shutil.copy(load({}).keeper, folder / "keeper")
        folder.chmod(0o755)
        own = folder / "own"
        own.mkdir(mode=0o700)
        os.chown(own, NOBODY, NOBODY)
        yield own
    finally:
        shutil.rmtree(folder)


def as_nobody(act: Callable[[], object], ends_with: int = 0) -> None:
    """Whatever it raises is shown, and fails the test. `ends_with`: the code of an end in the middle."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.umask(0o022)
            os.chdir("/")
            act()
            code = 0
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it is
            traceback.print_exc()
        finally:
            os._exit(code)
    _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == ends_with, "see what the process of nobody printed"
