"""Where the volumes of the storage `btrfs` are: on the data directory's own btrfs, or on one in a file that is mounted
for as long as a session needs it. Blocking; everything raises OSError."""

import errno
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from sandlot.host.storage import btrfs_kernel
from sandlot.host.storage.filesystem import filesystem_health
from sandlot.host.storage.loop_device import find_device
from sandlot.host.storage.loop_image import grow_image, make_image, mount_image, unmount_image
from sandlot.model import StorageHealth

MKFS = "mkfs.btrfs"
# One copy of everything: the disk below has what redundancy there is.
MAKE = (MKFS, "--quiet", "--metadata", "single", "--data", "single")
_OPTIONS = "discard=async"  # what sessions give back, the disk below gets back
_LEAST_BYTES = 256 << 20
_TRIED_BYTES = 128 << 20  # less mkfs refuses
_SHARE_OF_FREE = 0.5
_CLEARED_S, _LOOK_S = 10.0, 0.02
READ_ONLY, GONE = "its filesystem is read-only", "its filesystem is gone"


class BtrfsPlace:
    """`size`: of a file that is to be made or grown; 0: half of what is free when it is made."""

    def __init__(self, data: Path, size: int) -> None:
        self._data = data
        self._size = size
        self.image = data / "btrfs.img"
        self._point = data / "mounts" / "btrfs"  # the keeper knows this folder: it holds no mount in it
        self._own = data / "btrfs"
        self._device = 0  # that the volumes are on, while they can be reached
        self.path = self._own
        self.is_fresh = False  # made by the last `attach`: nothing that was kept is in it
        self._id = ""

    @property
    def volumes(self) -> Path:
        return self.path / "volumes"

    def is_native(self) -> bool:
        try:
            return btrfs_kernel.filesystem_id(self._nearest()) is not None
        except OSError:
            return False

    def _nearest(self) -> Path:
        folder = self._data
        while not folder.exists():
            folder = folder.parent
        return folder

    def was_used(self) -> bool:
        return self.image.exists() or self._own.is_dir()

    def is_there(self) -> bool:
        """And can be written: after an error the kernel makes it read-only."""
        try:
            if not self._device or os.stat(self.volumes).st_dev != self._device:
                return False
            return not os.statvfs(self.volumes).f_flag & os.ST_RDONLY
        except OSError:
            return False

    def is_broken(self) -> bool:
        """It is mounted, read-only, and cannot be made writable."""
        with suppress(OSError):
            is_read_only = os.statvfs(self.path).f_flag & os.ST_RDONLY
            return bool(is_read_only) and self._is_ours() and btrfs_kernel.has_failed(self.path)
        return False

    def _is_ours(self) -> bool:
        return self.path == self._own or self._is_mounted()

    def try_out(self) -> None:
        """Make, snapshot and destroy a subvolume where volumes would be, or on a small one in a file. Nothing stays."""
        if self.is_native():
            _try_in(self._nearest())
            return
        folder = self._point.parent  # the keeper holds no mount in it
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix="probe-", dir=folder) as made:
                image, point = Path(made) / "image", Path(made) / "point"
                make_image(image, _TRIED_BYTES, MAKE)
                mount_image(image, point, "btrfs", _OPTIONS)
                try:
                    _try_in(point)
                finally:
                    unmount_image(point)
        finally:
            with suppress(OSError):
                folder.rmdir()

    # ---- coming and going --------------------------------------------------------------------------------------

    def attach(self) -> None:
        self.is_fresh = not self.was_used()
        if self._own.is_dir() or (self.is_native() and not self.image.exists()):
            self._attach_own()
        else:
            self._attach_image()
        if os.statvfs(self.path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, READ_ONLY)
        self.volumes.mkdir(mode=0o700, exist_ok=True)
        self._id = btrfs_kernel.filesystem_id(self.path) or ""
        if self.path == self._point and not self.has_quotas():
            self.enable_quotas()
        self._device = os.stat(self.volumes).st_dev

    def _attach_own(self) -> None:
        self.path = self._own
        if not self._own.exists():
            btrfs_kernel.make_subvolume(self._data, self._own.name)
            self._own.chmod(0o700)

    def _attach_image(self) -> None:
        self.path = self._point
        if self.is_broken():
            with suppress(OSError):
                unmount_image(self._point)
        if not self._is_mounted():
            if not self.image.exists():
                if self._id:
                    raise OSError(errno.ENODEV, GONE)  # another one in its place would not be what sessions need
                make_image(self.image, self._size or self._default_size(), MAKE)
            mount_image(self.image, self._point, "btrfs", _OPTIONS)
        if self._size > self.image.stat().st_size:
            grow_image(self.image, self._size)
            btrfs_kernel.grow_to_device(self._point)

    def _is_mounted(self) -> bool:
        try:
            return self._point.stat().st_dev != self._data.stat().st_dev
        except FileNotFoundError:
            return False

    def _default_size(self) -> int:
        told = os.statvfs(self._data)
        size = int(told.f_bavail * told.f_frsize * _SHARE_OF_FREE)
        if size < _LEAST_BYTES:
            raise OSError(errno.ENOSPC, "the disk has no room for a btrfs of its own")
        return size

    def detach(self) -> None:
        """Nothing stays where nothing is needed."""
        is_needed = not self.is_there() or any(self.volumes.iterdir())
        self._device, self._id = 0, ""
        if is_needed:
            return
        if self.path == self._own:
            btrfs_kernel.destroy_subvolume(self._data, self._own.name)
            return
        # Nobody needs it, but a thread may still read, and old roots are dropped behind everyone's back.
        give_up = time.monotonic() + _CLEARED_S
        while not _is_unmounted(self._point):
            if time.monotonic() > give_up:
                return  # the next engine finds it as it is
            time.sleep(_LOOK_S)
        while find_device(self.image) and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
        self.image.unlink()
        with suppress(OSError):
            self._point.rmdir()
            self._point.parent.rmdir()

    # ---- what it says of itself --------------------------------------------------------------------------------

    def health(self) -> StorageHealth:
        """Of the filesystem, or of the disk below it, whichever is fuller."""
        if not self.is_there():
            raise OSError(errno.ENODEV, self.trouble())
        told = filesystem_health(self.path)
        if self.path == self._point:
            below = filesystem_health(self.image)
            if below.space.capacity > told.space.capacity:
                return below
        return told

    def trouble(self) -> str:
        """Why it is not there."""
        with suppress(OSError):
            if os.statvfs(self.volumes).f_flag & os.ST_RDONLY:
                return READ_ONLY
        return GONE

    # ---- quotas ------------------------------------------------------------------------------------------------

    def _group(self, group: int) -> Path:
        return Path(f"/sys/fs/btrfs/{self._id}/qgroups/1_{group}")

    def has_quotas(self) -> bool:
        return self._mode() == "squota"

    def can_have_quotas(self) -> bool:
        """Whoever turned the other kind on wants that."""
        return self._mode() in ("", "squota")

    def _mode(self) -> str:
        try:
            return Path(f"/sys/fs/btrfs/{self._id}/qgroups/mode").read_text().strip()
        except OSError:
            return ""

    def enable_quotas(self) -> None:
        btrfs_kernel.enable_simple_quotas(self.path)

    def used(self, group: int) -> int:
        """Bytes of all that the subvolumes of a group wrote and that is still kept, what is about to be written
        included."""
        folder = self._group(group)
        return sum(int((folder / name).read_text()) for name in ("referenced", "rsv_data"))

    def held(self, group: int) -> int:
        """And what the kernel has set aside for what is under way."""
        folder = self._group(group)
        return self.used(group) + sum(
            int((folder / name).read_text()) for name in ("rsv_meta_prealloc", "rsv_meta_pertrans")
        )

    def limit(self, group: int) -> int | None:
        folder = self._group(group)
        flags, most = (int((folder / name).read_text()) for name in ("limit_flags", "max_referenced"))
        return most if flags & 1 and most else None

    def groups(self) -> list[int]:
        names = os.listdir(self._group(0).parent) if self.has_quotas() else []
        return [int(name[2:]) for name in names if name.startswith("1_")]


def _is_unmounted(point: Path) -> bool:
    try:
        unmount_image(point)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _try_in(folder: Path) -> None:
    first = f".probe-{os.urandom(4).hex()}"
    second = f"{first}-snapshot"
    btrfs_kernel.make_subvolume(folder, first)
    try:
        (folder / first / "u").mkdir()
        btrfs_kernel.take_snapshot(folder / first, folder, second, read_only=True)
        try:
            os.stat(folder / second / "u")
        finally:
            btrfs_kernel.destroy_subvolume(folder, second)
    finally:
        btrfs_kernel.destroy_subvolume(folder, first)


def has_program() -> bool:
    return shutil.which(MKFS) is not None
