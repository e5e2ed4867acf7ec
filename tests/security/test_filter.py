"""The filter, instruction by instruction, against a list to read; then the kernel against the same list."""

import errno
import platform
import subprocess

import pytest

from sandlot.attack.golden import (
    FAMILIES_ALLOWED,
    LAST_KNOWN,
    NAMESPACE_FLAGS,
    PERSONALITIES_ALLOWED,
    PID_ONE_GUARDED,
    TERMINAL_REQUESTS_REFUSED,
    refused_names,
)
from sandlot.attack.rows import ATTEMPT
from sandlot.config.settings import load
from sandlot.model import CallRequest
from tests.security import bpf
from tests.security.stage import ROOT, USER, Stage
from tests.security.syscalls import numbers

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64"),
    pytest.mark.skipif(not numbers(), reason="needs the kernel's headers"),
]

CALLS = numbers()
X32 = 0x40000000
HIGHEST = 600
# These look at an argument; with zeros for arguments the golden list says what is left.
LOOKS_AT_ARGUMENTS = {"socket": errno.EAFNOSUPPORT, "socketpair": errno.EAFNOSUPPORT}


@pytest.fixture(scope="module")
def program() -> tuple[bpf.Instruction, ...]:
    printed = subprocess.run([load({}).keeper, "filter"], check=True, capture_output=True, text=True)
    return bpf.parse(printed.stdout)


def golden() -> dict[int, int]:
    """Every number to the errno that a call without arguments must get, 0 when it may pass."""
    expected = {number: errno.ENOSYS if number > LAST_KNOWN else 0 for number in range(HIGHEST + 1)}
    expected |= {CALLS[name]: code for name, code in LOOKS_AT_ARGUMENTS.items()}
    return expected | {CALLS[name]: errno.EPERM for name in refused_names()}


def name_of(number: int) -> str:
    return next((name for name, its in CALLS.items() if its == number), str(number))


def show(verdicts: dict[int, int]) -> dict[str, str]:
    return {name_of(number): errno.errorcode.get(code, "pass") for number, code in verdicts.items()}


def test_program_ends_in_verdicts_only(program: tuple[bpf.Instruction, ...]) -> None:
    answers = {step.value for step in program if step.code == 0x06}
    expected = {bpf.ERRNO | code for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)}
    assert answers == expected | {bpf.ALLOW}


def test_every_call(program: tuple[bpf.Instruction, ...]) -> None:
    expected = golden()
    found = {number: bpf.verdict(program, number) for number in expected}
    assert show(found) == show(expected)


@pytest.mark.parametrize("arch", [bpf.I386, 0x40000028, 0xC00000B7, 0], ids=["i386", "arm", "aarch64", "none"])
def test_other_architectures(program: tuple[bpf.Instruction, ...], arch: int) -> None:
    assert {bpf.verdict(program, number, arch=arch) for number in range(HIGHEST + 1)} == {errno.ENOSYS}


def test_x32_and_negative_numbers(program: tuple[bpf.Instruction, ...]) -> None:
    odd = [*(X32 + number for number in range(HIGHEST + 1)), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    assert {bpf.verdict(program, number) for number in odd} == {errno.ENOSYS}


@pytest.mark.parametrize("flag", NAMESPACE_FLAGS.values(), ids=NAMESPACE_FLAGS.keys())
def test_clone(program: tuple[bpf.Instruction, ...], flag: int) -> None:
    ordinary = 0x003D0F00 | 17  # what a thread is made with, and SIGCHLD
    for flags in (flag, flag | ordinary, flag | 0xFFFFFFFF00000000):
        assert bpf.verdict(program, CALLS["clone"], flags) == errno.EPERM
    assert bpf.verdict(program, CALLS["clone"], ordinary) == 0


@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_socket_families(program: tuple[bpf.Instruction, ...], call: str) -> None:
    passed = {family for family in range(256) if bpf.verdict(program, CALLS[call], family, 1) == 0}
    assert passed == set(FAMILIES_ALLOWED.values())
    # The kernel takes an int: what stands above it must not hide a family.
    assert bpf.verdict(program, CALLS[call], 17 | 1 << 32, 3) == errno.EAFNOSUPPORT


def test_terminal_requests(program: tuple[bpf.Instruction, ...]) -> None:
    refused = {code for code in range(0x5400, 0x5480) if bpf.verdict(program, CALLS["ioctl"], 0, code)}
    assert refused == set(TERMINAL_REQUESTS_REFUSED.values())
    for code in refused:
        assert bpf.verdict(program, CALLS["ioctl"], 0, code | 1 << 32) == errno.EPERM


def test_personalities(program: tuple[bpf.Instruction, ...]) -> None:
    tried = {0, 0xFFFFFFFF, *range(0x40), *(1 << bit for bit in range(32))}
    passed = {value for value in tried if bpf.verdict(program, CALLS["personality"], value) == 0}
    assert passed == set(PERSONALITIES_ALLOWED.values())


@pytest.mark.parametrize(("call", "which"), PID_ONE_GUARDED.items())
def test_pid_one_is_guarded(program: tuple[bpf.Instruction, ...], call: str, which: int) -> None:
    for pid in (0, 1, 2, 1 << 32 | 1, 0xFFFFFFFF):
        arguments = [0] * which + [pid]
        refused = bpf.verdict(program, CALLS[call], *arguments)
        assert refused == (errno.EPERM if pid & 0xFFFFFFFF == 1 else 0), (call, pid)


@pytest.mark.parametrize("user", [ROOT, USER])
def test_kernel_agrees(stage: Stage, attempt_program: bytes, program: tuple[bpf.Instruction, ...], user: str) -> None:
    session = stage.create()
    stage.place(session, ATTEMPT, attempt_program)
    tried = [number for number, code in golden().items() if code] + [X32 + CALLS["getpid"], X32 + CALLS["mount"]]
    ran = stage.run(CallRequest(session, (ATTEMPT, "sweep", *map(str, tried)), user=user, timeout_s=20))
    assert ran.exit_code == 0, ran
    found = dict(line.split() for line in ran.stdout.decode().splitlines())
    assert found == {str(number): errno.errorcode[bpf.verdict(program, number)] for number in tried}
