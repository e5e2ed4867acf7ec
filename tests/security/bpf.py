"""Runs the classic BPF of a seccomp filter: just the instructions that ours is made of."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
X86_64 = 0xC000003E
I386 = 0x40000003

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_RETURN = 0x06  # BPF_RET | BPF_K


def _any_bit(left: int, right: int) -> bool:
    return bool(left & right)


_JUMPS: Mapping[int, Callable[[int, int], bool]] = {
    0x15: int.__eq__,
    0x25: int.__gt__,
    0x35: int.__ge__,
    0x45: _any_bit,
}


@dataclass(frozen=True, slots=True)
class Instruction:
    code: int
    yes: int
    no: int
    value: int


def parse(text: str) -> tuple[Instruction, ...]:
    """One instruction per line: code, jump if true, jump if false, value."""
    return tuple(Instruction(*map(int, line.split())) for line in text.splitlines())


def verdict(program: Sequence[Instruction], call: int, *arguments: int, arch: int = X86_64) -> int:
    """0 when the call may pass, else the errno that it gets."""
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("<iIQ6Q", call - (1 << 32) if call >> 31 else call, arch, 0, *padded)
    accumulator, at = 0, 0
    while True:
        step = program[at]
        at += 1
        if step.code == _LOAD:
            (accumulator,) = struct.unpack_from("<I", data, step.value)
        elif step.code == _RETURN:
            break
        else:
            at += step.yes if _JUMPS[step.code](accumulator, step.value) else step.no
    if step.value == ALLOW:
        return 0
    assert step.value & 0xFFFF0000 == ERRNO, hex(step.value)
    return step.value & 0xFFFF
