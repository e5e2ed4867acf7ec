"""What is not a session's: a directory of the machine that anybody may write to, by its rights, and nothing reaches."""

import secrets
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Outside:
    """A directory of the machine, with a mark in names and contents."""

    folder: Path
    mark: str

    def look(self) -> list[tuple[str, int, int, bytes]]:
        found = [self.folder, *sorted(self.folder.rglob("*"))]
        return [
            (str(one), (told := one.lstat()).st_mode, told.st_mtime_ns, one.read_bytes() if one.is_file() else b"")
            for one in found
        ]

    def is_told_by(self, answer: object) -> bool:
        return self.mark in repr(answer)


@contextmanager
def kept_outside() -> Generator[Outside]:
    above, mark = Path(tempfile.mkdtemp(prefix="sandlot-outside-")), secrets.token_hex(8)
    try:
        above.chmod(0o755)
        folder = above / "out"
        (folder / "d").mkdir(parents=True)
        for name in ("f", mark, f"d/{mark}"):
            (folder / name).write_text(f"secret {mark}\n")
            (folder / name).chmod(0o666)
        for one in (folder, folder / "d"):
            one.chmod(0o777)
        yield Outside(folder, mark)
    finally:
        shutil.rmtree(above)
