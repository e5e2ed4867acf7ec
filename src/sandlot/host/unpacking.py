"""An archive becomes files of a session, below one directory. Everything here blocks, and raises OSError.

Every name is one step from a directory that is open, and no step goes through a link or a mount, whatever the archive
or a program of the session put there. A file has no name until all of it has come."""

import errno
import os
import posixpath
import stat
from contextlib import suppress

from sandlot.host import failpoints
from sandlot.host.asides import Aside
from sandlot.host.inside import Inside, WrongKind, make_directory, open_folder
from sandlot.host.kernel import ONE_STEP, open_inside
from sandlot.host.replacement import open_new, set_mode, write_all
from sandlot.model import InvalidArgument, Member, MemberKind, TarReader, TreeTally

_Parts = tuple[str, ...]
_FOLDERS_MAX = 128  # that are kept open
_OWNER = stat.S_IRWXU


class Unpacking:
    """Takes an archive in pieces. What came whole before something went wrong is there, and nothing else."""

    def __init__(self, inside: Inside, path: str) -> None:
        self.tally = TreeTally()
        self.at = ""  # what is being made, below the directory
        self._inside = inside
        self._path = path
        self._reader = TarReader()
        self._is_new = make_directory(inside, path, 0o755, parents=True)
        self._folders: dict[_Parts, int] = {(): open_folder(inside, path, parents=False)}
        self._member: Member | None = None
        self._fd = -1
        self._aside: Aside | None = None  # its name while it is not in its place
        self._left = 0
        self._modes: list[tuple[_Parts, int]] = []  # of directories that their owner could not fill otherwise

    def feed(self, data: bytes | memoryview) -> None:
        for item in self._reader.feed(data):
            if isinstance(item, Member):
                self._begin(item)
            else:
                write_all(self._fd, item)
                self._left -= len(item)
                self.tally.size_bytes += len(item)
            if self._member is not None and not self._left:
                self._put(self._member)

    def finish(self) -> None:
        self._reader.finish()
        for parts, mode in reversed(self._modes):
            self.at = "/".join(parts)
            os.chmod(f"/proc/self/fd/{self._folder(parts)}", mode)

    def close(self) -> None:
        """What has no name by now never was."""
        self._drop()
        folders, self._folders = self._folders, {}
        for fd in folders.values():
            os.close(fd)

    # ---- members -----------------------------------------------------------------------------------------------

    def _begin(self, member: Member) -> None:
        self.at = member.path
        if member.kind is MemberKind.DIRECTORY:
            self._make_directory(member)
            return
        if member.kind is MemberKind.HARD_LINK:
            self._link_hard(member)
            return
        above = self._folder(member.parts[:-1])
        if member.kind is MemberKind.SYMLINK:
            self._link(above, member)
        else:
            self._fd, self._aside = open_new(self._inside, above, self._named(member.parts[:-1]), member.mode)
            self._member, self._left = member, member.size_bytes

    def _put(self, member: Member) -> None:
        set_mode(self._fd, member.mode)
        os.utime(self._fd, (member.modified, member.modified))
        name, above = member.parts[-1], self._folder(member.parts[:-1])
        if not self._aside:
            source = f"/proc/self/fd/{self._fd}"
            try:
                os.link(source, name, dst_dir_fd=above, follow_symlinks=True)
            except FileExistsError:
                self._keep_owner(above, name)
                self._aside = self._inside.aside(above, self._named(member.parts[:-1]))
                os.link(source, self._aside.name, dst_dir_fd=above, follow_symlinks=True)
        if self._aside:
            failpoints.reach("upload: has a hidden name")
            self._aside.put_at(name, self._fd)
        self._drop()
        self.tally.files += 1

    def _keep_owner(self, above: int, name: str) -> None:
        old = os.stat(name, dir_fd=above, follow_symlinks=False)
        if stat.S_ISDIR(old.st_mode):
            raise WrongKind(errno.EISDIR, "a directory is there already, and is not replaced")
        if stat.S_ISREG(old.st_mode):
            with suppress(PermissionError):  # only root can give files away
                os.fchown(self._fd, old.st_uid, old.st_gid)

    def _drop(self) -> None:
        if self._aside:
            self._aside.close()
        if self._fd >= 0:
            os.close(self._fd)
        self._member, self._fd, self._aside, self._left = None, -1, None, 0

    def _named(self, parts: _Parts) -> str:
        """A directory, as the session names it."""
        return posixpath.join(self._path, *parts)

    def _link(self, above: int, member: Member) -> None:
        name = member.parts[-1]
        try:
            os.symlink(member.target, name, dir_fd=above)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
                raise WrongKind(errno.EISDIR, "a directory is there already, and is not replaced") from None
            with self._inside.aside(above, self._named(member.parts[:-1])) as aside:
                os.symlink(member.target, aside.name, dir_fd=above)
                os.rename(aside.name, name, src_dir_fd=above, dst_dir_fd=above)
        self.tally.links += 1

    def _link_hard(self, member: Member) -> None:
        """Another name for a file that came before; whether the user may have it is the kernel's to say."""
        *folder, source = member.target.split("/")
        try:
            found = open_inside(self._folder(tuple(folder)), source, os.O_PATH | os.O_NOFOLLOW, ONE_STEP)
        except FileNotFoundError:
            raise InvalidArgument(f"{member.path}: is another name of {member.target}, which is not there") from None
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise InvalidArgument(f"{member.path}: is another name of something that is no file")
            above = self._folder(member.parts[:-1])
            # Of two names of one file a rename leaves both, and then ours is removed.
            with self._inside.aside(above, self._named(member.parts[:-1])) as aside:
                os.link(f"/proc/self/fd/{found}", aside.name, dst_dir_fd=above, follow_symlinks=True)
                os.rename(aside.name, member.parts[-1], src_dir_fd=above, dst_dir_fd=above)
        finally:
            os.close(found)
        self.tally.files += 1

    # ---- directories -------------------------------------------------------------------------------------------

    def _make_directory(self, member: Member) -> None:
        if not member.parts:
            if self._is_new:
                self._modes.append(((), member.mode))
            return
        above = self._folder(member.parts[:-1])
        try:
            os.mkdir(member.parts[-1], member.mode | _OWNER, dir_fd=above)
        except FileExistsError:
            self._folder(member.parts)  # or something else is there
            return
        if member.mode & _OWNER != _OWNER:
            self._modes.append((member.parts, member.mode))
        self.tally.directories += 1

    def _folder(self, parts: _Parts) -> int:
        """Lent, until the next question. Made, where the archive does not tell of it."""
        found = self._folders.get(parts)
        if found is not None:
            return found
        known = len(parts) - 1
        while parts[:known] not in self._folders:
            known -= 1
        fd = self._folders[parts[:known]]
        for depth in range(known, len(parts)):
            fd = self._enter(fd, parts[depth], parts[: depth + 1])
        return fd

    def _enter(self, above: int, name: str, parts: _Parts) -> int:
        flags = os.O_PATH | os.O_DIRECTORY
        try:
            fd = open_inside(above, name, flags, ONE_STEP)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=above)
            self.tally.directories += 1
            fd = open_inside(above, name, flags, ONE_STEP)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise WrongKind(errno.ENOTDIR, "a link or a file is there, where a directory is to be") from None
            raise
        if len(self._folders) >= _FOLDERS_MAX:
            # Not the top, and not the one that we come from.
            oldest = next(key for key, value in self._folders.items() if key and value != above)
            os.close(self._folders.pop(oldest))
        self._folders[parts] = fd
        return fd
