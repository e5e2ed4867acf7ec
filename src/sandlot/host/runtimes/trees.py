"""The files of a session as the host reaches them: through its guest, which stands on them."""

import errno
import os

from sandlot.contracts.runtime import Guest, StartPlan, Tree
from sandlot.host.storage.canonical import first_id
from sandlot.model import LimitReached, Unavailable


def open_tree(plan: StartPlan, guest: Guest, entry: str) -> Tree:
    """What `entry` names of the guest's process on the host. Raises Unavailable when it is gone, LimitReached."""
    gone = "the guest of the session is gone"
    try:
        fd = os.open(f"/proc/{guest.pid}/{entry}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise LimitReached("the engine has no descriptor left", limit="open_files") from None
        raise Unavailable(gone) from None
    # Asked afterwards: a guest that is alive now had its pid then, and nobody else's files were opened.
    if not guest.is_alive():
        os.close(fd)
        raise Unavailable(gone)
    return Tree(fd, "/", first_id(plan.range), tuple(mount.target for mount in plan.mounts))
