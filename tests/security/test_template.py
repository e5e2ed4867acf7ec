"""The built-in template: nothing in it that the host keeps for itself, and everything in it that an agent needs."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.attack.rows import Row
from tests.security.stage import ROOT, USER, Stage

pytestmark = pytest.mark.root

# Where a machine keeps what is its own; /usr comes from packages.
OWN = "/etc /root /home /var /opt /srv /run /boot /media /mnt /usr/local"
_SECRET_NAMES = (
    ".ssh .gnupg .aws .docker .kube .config .netrc .npmrc .pypirc .git-credentials .gitconfig .bash_history "
    ".pgpass .my.cnf pip.conf auth.json credentials authorized_keys ssh_host_*_key shadow- gshadow- passwd- "
    "docker.sock containerd.sock crio.sock podman.sock keeper.sock serviceaccount passwords.dat cloud instance-data"
)
SECRET_BYTES_MAX = 256 * 1024
SECRET_BYTES_MIN = 16  # shorter files are equal by chance
SECRETS_MAX = 4000

_NAMES = " -o ".join(f"-name '{name}'" for name in _SECRET_NAMES.split())

ABSENT = (
    Row("secrets by name", f"find {OWN} -xdev \\( {_NAMES} \\) 2>&1", "", "the template takes listed files only"),
    Row(
        "private keys",
        f"grep -rlE -e '-----BEGIN [A-Z ]*PRIVATE KEY' {OWN}; true",
        "",
        "a file of /etc that holds a private key is left out",
    ),
    Row("keys of ssh", "ls -d /etc/ssh /root/.ssh /home/*/.ssh 2>/dev/null", "", "/etc/ssh is not in the list"),
    Row("identity", "cat /etc/machine-id /var/lib/dbus/machine-id 2>/dev/null", "", "the template writes an empty one"),
    Row("passwords", "cut -d: -f2 /etc/shadow /etc/gshadow | sort -u", "*", "every account is locked"),
    Row("passwords in passwd", "cut -d: -f2 /etc/passwd | sort -u", "x", "passwd holds no password"),
    Row("homes", "ls -A /home | xargs; ls -A /root | xargs", "user\n.bashrc .profile", "homes are made anew"),
    Row(
        "files of root",
        "cd /root && for name in bashrc profile; do cmp .$name /usr/share/base-files/dot.$name; done",
        "",
        "they come from the package, not from the host's root",
    ),
    Row("/run", "find /run -mindepth 1 | xargs", "/run/lock", "nothing of the host's /run is taken"),
    Row("sockets and devices", "find / -xdev \\( -type s -o -type b -o -type c -o -type p \\)", "", "never taken"),
    Row("logs and mail", "find /var/log /var/mail /var/spool /var/backups /var/tmp -type f", "", "made empty"),
    Row("local additions", "find /usr/local -type f", "", "/usr/local is not the package manager's, so it is left out"),
    Row("mounts and services", "find /opt /srv /media /mnt /boot -mindepth 1", "", "made empty"),
    Row("name servers", "cat /etc/resolv.conf", "", "a session has no name server before it has a network"),
    Row("passwords in addresses", "grep -rE '://[^/ ]+:[^/ ]+@' /etc; true", "", "such sources are left out"),
    Row("files of nobody", "find / -xdev -nouser -o -xdev -nogroup", "", "the id map holds every owner"),
    Row("name", "hostname; cat /etc/hostname", "sandbox\nsandbox", "every session has the same"),
)

_DEB = """
set -e
mkdir -p /tmp/deb/DEBIAN /tmp/deb/usr/share/tiny
printf '%s\\n' 'Package: tiny' 'Version: 1' 'Architecture: all' 'Maintainer: m <m@example.org>' 'Description: d' \\
    >/tmp/deb/DEBIAN/control
printf '#!/bin/sh\\nuseradd -r tiny && chown tiny /usr/share/tiny/file\\n' >/tmp/deb/DEBIAN/postinst
chmod 755 /tmp/deb/DEBIAN/postinst
echo hello >/tmp/deb/usr/share/tiny/file
dpkg-deb -b --root-owner-group /tmp/deb /tmp/tiny.deb >/dev/null
"""
_WHEEL = """
import subprocess, sys, tempfile, zipfile
name = f"tiny{os.getuid()}"
wheel_file = f"{tempfile.mkdtemp()}/{name}-1-py3-none-any.whl"
with zipfile.ZipFile(wheel_file, "w") as wheel:
    wheel.writestr(f"{name}.py", "word = 'hello'")
    wheel.writestr(f"{name}-1.dist-info/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\n")
    wheel.writestr(f"{name}-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(f"{name}-1.dist-info/RECORD", "")
install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-warn-script-location"]
subprocess.run([*install, wheel_file], check=True, stderr=subprocess.DEVNULL)
subprocess.run([sys.executable, "-c", f"import {name}; print({name}.word)"], check=True)
"""

WORKS = (
    Row("python", "print(sum(range(10)))", "45", "the machine's own", python=True),
    Row("sudo", "sudo -n id -un", "root", "the user may become the session's root without a password", (USER,)),
    Row(
        "git",
        "cd $(mktemp -d) && git init -q && git -c user.name=a -c user.email=b commit -q --allow-empty -m c "
        "&& git log --format=%s",
        "c",
        "the machine's own",
    ),
    Row(
        "dpkg",
        f"{_DEB} dpkg -i /tmp/tiny.deb >/tmp/log 2>&1; stat -c %U /usr/share/tiny/file; dpkg -r tiny >/tmp/log 2>&1; "
        "ls /usr/share/tiny 2>/dev/null",
        "tiny",
        "root may install packages",
        (ROOT,),
    ),
    Row(
        "apt",
        f"{_DEB} userdel tiny 2>/dev/null || true; apt-get -qq install /tmp/tiny.deb >/tmp/log 2>&1; "
        "cat /usr/share/tiny/file; apt-get -qq remove tiny >/tmp/log 2>&1; apt-get check >/dev/null && echo fine",
        "hello\nfine",
        "root may install packages",
        (ROOT,),
    ),
    Row("pip", _WHEEL, "hello", "both may install for themselves", python=True),
)


@pytest.fixture(scope="module")
def session(stage: Stage) -> str:
    return stage.create()


@pytest.mark.parametrize("row", ABSENT, ids=lambda row: row.name)
def test_absent(stage: Stage, session: str, row: Row) -> None:
    ran = stage.run(row.request(session, ROOT))
    assert not row.wrong(ran.stdout, ran.stderr), ran


@pytest.mark.parametrize(
    ("row", "user"), [pytest.param(row, user, id=f"{row.name}-{user}") for row in WORKS for user in row.users]
)
def test_works(stage: Stage, session: str, row: Row, user: str) -> None:
    ran = stage.run(row.request(session, user))
    assert not row.wrong(ran.stdout, ran.stderr), ran


def kept_from_others() -> Iterator[Path]:
    """Files of the host that only their owner may read."""
    for top, closed in (("/etc", False), ("/root", True), ("/var/lib", False)):
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if not (Path(folder) / name).is_mount()]
            for name in files:
                path = Path(folder) / name
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or not SECRET_BYTES_MIN <= status.st_size <= SECRET_BYTES_MAX:
                    continue
                if closed or not status.st_mode & stat.S_IROTH:
                    yield path


def test_no_file_that_the_host_keeps_from_others(stage: Stage, session: str) -> None:
    """By content, whatever its name. What a package delivers to everybody is no secret."""
    public = {hashlib.sha256(path.read_bytes()).hexdigest() for path in Path("/usr/share/base-files").iterdir()}
    public |= {hashlib.sha256(path.read_bytes()).hexdigest() for path in Path("/etc/skel").iterdir() if path.is_file()}
    secrets: dict[str, Path] = {}
    for path in kept_from_others():
        secrets[hashlib.sha256(path.read_bytes()).hexdigest()] = path
        if len(secrets) == SECRETS_MAX:
            break
    inside = stage.shell(session, f"find {OWN} -xdev -type f -exec sha256sum {{}} +")
    found = {line.split()[0] for line in inside.splitlines()}
    assert len(found) > 100
    assert not {str(secrets[digest]) for digest in found & secrets.keys() - public}


def test_shadow_is_not_the_hosts(stage: Stage, session: str) -> None:
    host = Path("/etc/shadow").read_text()
    inside = stage.shell(session, "cat /etc/shadow")
    assert inside != host
    passwords = {line.split(":")[1] for line in host.splitlines()} - {"*", "!", "!!", "!*", ""}
    assert not any(password in inside for password in passwords)


def test_name_and_identity_of_the_host_stand_nowhere(stage: Stage, session: str) -> None:
    machine = Path("/etc/machine-id")
    identity = machine.read_text().strip() if machine.exists() else ""
    if identity:
        assert not stage.shell(session, f"grep -rlF {identity} {OWN} || true")
    assert os.uname().nodename not in stage.shell(session, "cat /etc/hosts /etc/hostname").split()
