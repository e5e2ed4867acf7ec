"""What an examination finds: the journal and the machine do not say the same."""

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    JOURNAL = "journal"  # the file is damaged
    UNFINISHED = "unfinished"  # an engine died in the middle of something
    FILES_MISSING = "files missing"  # the journal knows them, the disk does not
    GUEST_MISSING = "guest missing"  # a session is active and nothing runs it
    FILES_STRAY = "files stray"  # nobody needs them
    OUTPUT_STRAY = "output stray"
    GUEST_STRAY = "guest stray"
    GROUP_STRAY = "cgroup stray"
    MOUNT_STRAY = "mount stray"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    name: str
    detail: str
    next_step: str
    repairable: bool = False  # a repair mends it, because it carries our mark and nobody needs it
    mended: bool = False


@dataclass(frozen=True, slots=True)
class Examination:
    sessions: int  # that the journal knows
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Nothing was found, or all of it is mended."""
        return all(finding.mended for finding in self.findings)
