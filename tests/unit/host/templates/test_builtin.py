"""The built-in template, made from a small machine of our own: what comes in, what stays out, what a crash leaves."""

import fcntl
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.host.templates import builtin
from sandlot.host.templates.accounts import accounts_from, groups_from, passwd_text, statoverride_text
from sandlot.host.templates.apt_sources import without_credentials
from tests.conftest import is_root

needs_root = pytest.mark.skipif(not is_root(), reason="owners of files can be set by root only")

CERTIFICATE = "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n"
HER_HOME = Path("/home", "alice")
PASSWD = (
    "root:$6$hash:0:0:Boss:/secret/root:/usr/bin/zsh\n"
    "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n"
    f"alice:x:1000:1000:Alice:{HER_HOME}:/bin/bash\n"
    "postgres:x:101:104::/var/lib/postgresql:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    "+nis::::::\n"
)
GROUP = "root:x:0:\nshadow:x:42:\nssl-cert:x:103:postgres,alice\nalice:x:1000:\nnogroup:x:65534:\n"
BASHRC = "# as the package delivered it\n"


def put(machine: Path, path: str, text: str = "", mode: int = 0o644) -> Path:
    file = machine / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def fill_usr(machine: Path) -> None:
    tool = put(machine, "usr/bin/tool", "tool", 0o4755)
    (machine / "usr/bin/same-tool").hardlink_to(tool)
    (machine / "usr/bin/link").symlink_to("tool")
    (machine / "usr/bin/hers").symlink_to(HER_HOME / "bin/hers")
    put(machine, "usr/bin/sudo", "sudo", 0o4755)
    put(machine, "usr/lib/secret", "TOPSECRET", 0o600)
    put(machine, "usr/lib/closed/file", "TOPSECRET")
    (machine / "usr/lib/closed").chmod(0o700)
    os.mkfifo(machine / "usr/lib/fifo")
    put(machine, "usr/lib/python3.11/EXTERNALLY-MANAGED")
    put(machine, "usr/lib/python3.11/os.py")
    put(machine, "usr/local/bin/own", "TOPSECRET")
    put(machine, "usr/etc/npmrc", "TOPSECRET")
    put(machine, "usr/share/ca-certificates/mozilla/Good.crt", CERTIFICATE.format("good"))
    put(machine, "usr/local/share/ca-certificates/local.crt", CERTIFICATE.format("local"))
    os.utime(machine / "usr/lib", ns=(1_000_000_000, 1_000_000_000))
    for name in ("bin", "lib"):
        (machine / name).symlink_to(f"usr/{name}")
    put(machine, "lib32/real.so")


def fill_etc(machine: Path) -> None:
    put(machine, "etc/passwd", PASSWD)
    put(machine, "etc/group", GROUP)
    put(machine, "etc/shadow", "root:$6$TOPSECRET:1::::::\n", 0o640)
    put(machine, "etc/apt/sources.list", "deb http://deb/x y main\n# deb https://me:TOPSECRET@corp/x y main\n")
    put(
        machine,
        "etc/apt/sources.list.d/two.sources",
        "Types: deb\nURIs: https://TOPSECRET@corp/a\n\n\nTypes: deb\nURIs: http://deb/b\n",
    )
    for path in (
        "apt/apt.conf.d/90proxy",
        "apt/auth.conf",
        "environment",
        "gitconfig",
        "machine-id",
        "npmrc",
        "pip.conf",
        "profile",
        "profile.d/token.sh",
        "resolv.conf",
        "ssh/ssh_host_key",
        "ssl/private/key.pem",
        "wgetrc",
    ):
        put(machine, f"etc/{path}", "TOPSECRET\n")
    put(machine, "etc/bash.bashrc", "export TOKEN=TOPSECRET\n")
    put(machine, "etc/skel/.bashrc", BASHRC)
    put(machine, "etc/skel/.netrc", "TOPSECRET")
    put(machine, "etc/fonts/key.conf", "-----BEGIN RSA PRIVATE KEY-----\n")
    put(machine, "etc/services", "ssh 22/tcp\n")
    put(machine, "etc/inputrc", "TOPSECRET", 0o600)
    certs = machine / "etc/ssl/certs"
    certs.mkdir(parents=True)
    (certs / "Good.pem").symlink_to("/usr/share/ca-certificates/mozilla/Good.crt")
    (certs / "0123abcd.0").symlink_to("Good.pem")
    (certs / "local.pem").symlink_to("/usr/local/share/ca-certificates/local.crt")
    (certs / "89ef0123.0").symlink_to("local.pem")
    put(machine, "etc/ssl/certs/ca-certificates.crt", CERTIFICATE.format("good") + CERTIFICATE.format("local"))


def fill_var(machine: Path) -> None:
    put(
        machine,
        "var/lib/dpkg/status",
        "Package: bash\nStatus: install ok installed\nConffiles:\n"
        f" /etc/bash.bashrc {md5('another')}\n /etc/skel/.bashrc {md5(BASHRC)}\nDescription: a shell\n",
    )
    put(machine, "var/lib/dpkg/statoverride", "root ssl-cert 710 /etc/ssl/private\nroot alice 2755 /usr/bin/tool\n")
    put(machine, "var/lib/dpkg/info/bash.list", "/usr/bin/bash\n")
    put(machine, "var/lib/dpkg/lock", "", 0o640)
    put(machine, "var/lib/dpkg/updates/0001", "half")
    put(machine, "var/cache/debconf/config.dat", "TOPSECRET")
    put(machine, "root/.ssh/id_ed25519", "TOPSECRET")
    put(machine, "home/alice/notes", "TOPSECRET")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    made = tmp_path / "machine"
    fill_usr(made)
    fill_etc(made)
    fill_var(made)
    return made


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def root(tmp_path: Path, machine: Path) -> Path:
    return builtin.build(tmp_path / "templates" / "one", machine).path / "root"


@needs_root
def test_nothing_secret_comes_in(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert b"TOPSECRET" not in path.read_bytes(), path
            assert b"PRIVATE KEY" not in path.read_bytes(), path
            assert b"alice" not in path.read_bytes(), path
        assert "alice" not in path.name


@needs_root
def test_usr_is_linked_not_copied(root: Path, machine: Path) -> None:
    tool = root / "usr/bin/tool"
    assert tool.stat().st_ino == (machine / "usr/bin/tool").stat().st_ino
    assert tool.stat().st_ino == (root / "usr/bin/same-tool").stat().st_ino
    assert mode_of(tool) == 0o4755
    assert (root / "usr/bin/link").readlink() == Path("tool")
    assert (root / "bin").readlink() == Path("usr/bin")
    assert (root / "lib32/real.so").is_file()
    assert not os.path.lexists(root / "sbin")
    assert (root / "usr/lib").stat().st_mtime_ns == 1_000_000_000


@needs_root
def test_usr_leaves_out_what_is_private_special_or_local(root: Path) -> None:
    for path in ("lib/secret", "lib/closed", "lib/fifo", "etc", "bin/hers", "lib/python3.11/EXTERNALLY-MANAGED"):
        assert not os.path.lexists(root / "usr" / path), path
    assert (root / "usr/lib/python3.11/os.py").is_file()
    assert list((root / "usr/local/bin").iterdir()) == []
    for name in ("sbin", "lib", "share", "include", "etc", "src", "games"):
        assert (root / "usr/local" / name).is_dir()


@needs_root
def test_etc_holds_the_list_and_no_more(root: Path) -> None:
    etc = root / "etc"
    for path in ("apt/auth.conf", "gitconfig", "pip.conf", "npmrc", "ssh", "inputrc", "wgetrc", "bash.bashrc"):
        assert not os.path.lexists(etc / path), path
    assert list((etc / "apt/apt.conf.d").iterdir()) == []
    assert list((etc / "ssl/private").iterdir()) == []
    assert (etc / "services").read_text() == "ssh 22/tcp\n"
    assert (etc / "apt/sources.list").read_text() == "deb http://deb/x y main\n"
    assert (etc / "apt/sources.list.d/two.sources").read_text() == "Types: deb\nURIs: http://deb/b\n"
    assert [(etc / name).read_text() for name in ("machine-id", "resolv.conf", "environment")] == ["", "", ""]
    assert (etc / "hostname").read_text() == "sandbox\n"


@needs_root
def test_accounts_are_the_systems_and_one_user(root: Path) -> None:
    passwd = (root / "etc/passwd").read_text().splitlines()
    assert passwd == [
        "root:x:0:0:root:/root:/bin/bash",
        "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin",
        "postgres:x:101:104::/var/lib/postgresql:/bin/bash",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
        "user:x:1000:1000::/home/user:/bin/bash",
    ]
    assert "ssl-cert:x:103:postgres" in (root / "etc/group").read_text().splitlines()
    for name in ("shadow", "gshadow"):
        file = root / "etc" / name
        assert all(line.split(":")[1] == "*" for line in file.read_text().splitlines())
        assert (mode_of(file), file.stat().st_uid, file.stat().st_gid) == (0o640, 0, 42)
    sudoers = root / "etc/sudoers.d/user"
    assert sudoers.read_text() == "user ALL=(ALL:ALL) NOPASSWD: ALL\n"
    assert mode_of(sudoers) == mode_of(root / "etc/sudoers") == 0o440


@needs_root
def test_sudoers_only_where_there_is_sudo(tmp_path: Path, machine: Path) -> None:
    (machine / "usr/bin/sudo").unlink()
    root = builtin.build(tmp_path / "plain", machine).path / "root"
    assert not (root / "etc/sudoers").exists()


@needs_root
def test_local_certificates_stay_out(root: Path) -> None:
    certs = root / "etc/ssl/certs"
    assert sorted(path.name for path in certs.iterdir()) == ["0123abcd.0", "Good.pem", "ca-certificates.crt"]
    assert (certs / "ca-certificates.crt").read_text() == CERTIFICATE.format("good")


@needs_root
def test_bundle_without_links_loses_local_certificates(tmp_path: Path, machine: Path) -> None:
    for link in (machine / "etc/ssl/certs").iterdir():
        if link.is_symlink():
            link.unlink()
    root = builtin.build(tmp_path / "bundle", machine).path / "root"
    assert (root / "etc/ssl/certs/ca-certificates.crt").read_text() == CERTIFICATE.format("good")


@needs_root
def test_package_database_works_for_the_template(root: Path, machine: Path) -> None:
    dpkg = root / "var/lib/dpkg"
    assert (dpkg / "status").read_text() == (machine / "var/lib/dpkg/status").read_text()
    assert (dpkg / "status").stat().st_ino != (machine / "var/lib/dpkg/status").stat().st_ino
    assert (dpkg / "info/bash.list").stat().st_ino == (machine / "var/lib/dpkg/info/bash.list").stat().st_ino
    assert (dpkg / "statoverride").read_text() == "root ssl-cert 710 /etc/ssl/private\n"
    assert list((dpkg / "updates").iterdir()) == []
    assert not (dpkg / "lock").exists()
    partial = root / "var/cache/apt/archives/partial"
    assert (mode_of(partial), partial.stat().st_uid) == (0o700, 42)


@needs_root
def test_directories_have_their_modes_and_owners(root: Path) -> None:
    modes = {"": 0o755, "root": 0o700, "tmp": 0o1777, "var/tmp": 0o1777, "run/lock": 0o1777, "proc": 0o555}
    assert {path: mode_of(root / path) for path in modes} == modes
    for path in ("home/user", "workspace", "home/user/.bashrc"):
        assert ((root / path).stat().st_uid, (root / path).stat().st_gid) == (1000, 1000)
    assert (root / "home/user/.bashrc").read_text() == BASHRC
    assert not (root / "home/user/.netrc").exists()
    assert (root / "var/run").readlink() == Path("/run")
    assert mode_of(root.parent) == 0o700


@needs_root
def test_record_and_progress(tmp_path: Path, machine: Path) -> None:
    seen: list[int] = []
    built = builtin.build(tmp_path / "one", machine, seen.append)
    record = json.loads((built.path / "template.json").read_text())
    assert record["fingerprint"] == built.fingerprint == builtin.fingerprint(machine)
    assert record["how"] == built.how == "hardlink"
    assert record["entries"] == built.entries == seen[-1] == sum(1 for _ in (built.path / "root").rglob("*"))
    assert record["left_out"]["etc: source with credentials"] == 2
    assert record["left_out"]["usr: special file"] == 1


@needs_root
def test_complete_template_is_returned_as_it_is(tmp_path: Path, machine: Path) -> None:
    first = builtin.build(tmp_path / "one", machine)
    put(machine, "usr/bin/later")
    assert builtin.build(tmp_path / "one", machine) == first
    assert not (first.path / "root/usr/bin/later").exists()


@needs_root
def test_killed_build_leaves_no_template_and_the_next_one_cleans_up(tmp_path: Path, machine: Path) -> None:
    into = tmp_path / "templates" / "one"
    code = (
        "import os, sys; from pathlib import Path; from sandlot.host.templates import builtin; "
        "builtin.build(Path(sys.argv[1]), Path(sys.argv[2]), lambda _: os.kill(os.getpid(), 9))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, into, machine],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert [path.name.startswith(".partial-") for path in into.parent.iterdir()] == [True]
    built = builtin.build(into, machine)
    assert [path.name for path in into.parent.iterdir()] == ["one"]
    assert (built.path / "root/usr/bin/tool").is_file()


@needs_root
def test_failed_build_leaves_nothing(tmp_path: Path, machine: Path) -> None:
    (machine / "etc/passwd").unlink()
    into = tmp_path / "templates" / "one"
    with pytest.raises(builtin.TemplateBuildError, match="passwd"):
        builtin.build(into, machine)
    assert list(into.parent.iterdir()) == []


@needs_root
def test_partial_of_a_living_build_is_kept(tmp_path: Path, machine: Path) -> None:
    living = tmp_path / ".partial-living"
    living.mkdir()
    lock = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        builtin.build(tmp_path / "one", machine)
        assert living.is_dir()
    finally:
        os.close(lock)
    builtin.build(tmp_path / "two", machine)
    assert not living.exists()


@needs_root
def test_foreign_directory_is_refused_untouched(tmp_path: Path, machine: Path) -> None:
    kept = put(tmp_path, "mine/root/file", "mine")
    with pytest.raises(builtin.TemplateBuildError, match="not a template"):
        builtin.build(tmp_path / "mine", machine)
    assert kept.read_text() == "mine"


@needs_root
def test_machine_that_keeps_changing_is_an_error(tmp_path: Path, machine: Path) -> None:
    def change(count: int) -> None:
        with (machine / "var/lib/dpkg/status").open("a") as status:
            status.write(f"# {count}\n")

    with pytest.raises(builtin.TemplateBuildError, match="changed"):
        builtin.build(tmp_path / "templates" / "one", machine, change)
    assert list((tmp_path / "templates").iterdir()) == []


@needs_root
def test_another_filesystem_gets_copies(machine: Path, tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem to build on")
    other = shm / f"sandlot-{os.getpid()}"
    try:
        built = builtin.build(other / "one", machine)
        root = built.path / "root"
        assert built.how == "copy"
        assert (root / "usr/bin/tool").read_text() == "tool"
        assert mode_of(root / "usr/bin/tool") == 0o4755
        assert (root / "usr/bin/tool").stat().st_ino == (root / "usr/bin/same-tool").stat().st_ino
        assert (root / "usr/bin/link").readlink() == Path("tool")
    finally:
        subprocess.run(["rm", "-r", "--", other], check=True)


def test_fingerprint_follows_packages_and_settings(machine: Path) -> None:
    first = builtin.fingerprint(machine)
    assert builtin.fingerprint(machine) == first
    put(machine, "var/lib/dpkg/status", "Package: other\n")
    second = builtin.fingerprint(machine)
    put(machine, "etc/apt/sources.list.d/new.list", "deb http://deb/z y main\n")
    third = builtin.fingerprint(machine)
    put(machine, "etc/hosts", "not read by a build\n")
    assert len({first, second, third}) == 3
    assert builtin.fingerprint(machine) == third


def test_system_account_called_user_gives_way() -> None:
    accounts = accounts_from("user:x:500:500::/var/user:/bin/sh\n")
    assert passwd_text(accounts).splitlines()[-1] == "user:x:1000:1000::/home/user:/bin/bash"
    assert [account.name for account in accounts] == ["root", "user"]


def test_overrides_by_number_stay() -> None:
    accounts = accounts_from(PASSWD)
    text = "#1000 #1000 755 /usr/bin/tool\nalice root 755 /usr/bin/tool\n"
    assert statoverride_text(text, accounts, groups_from(GROUP, accounts)) == "#1000 #1000 755 /usr/bin/tool\n"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("deb http://deb/debian x main\n", True),
        ("deb https://user:password@host/debian x main\n", False),
        ("deb [arch=amd64] tor+https://token@host:8080/debian x main\n", False),
        ("deb http://deb/path@2 x main\n", True),
    ],
)
def test_sources_with_credentials_are_dropped(line: str, kept: bool) -> None:
    assert without_credentials(line, ".list") == (line if kept else "", 0 if kept else 1)
