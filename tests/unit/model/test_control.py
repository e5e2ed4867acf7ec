"""What an orchestrator may ask for, and what is refused before anyone is asked."""

from collections.abc import Callable

import pytest

from sandlot.model import (
    CreateSandboxRequest,
    CreateSandboxResponse,
    GetProcessStatusRequest,
    InvalidArgument,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    check_address,
    check_sandbox_id,
    limits,
)


@pytest.mark.parametrize("address", ["", "127.0.0.1:80", "node-1.example:65535", "[::1]:8700"])
def test_an_address_is_a_host_and_a_port_or_nothing(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "/var/lib/sandlot",
        "host",
        "host:",
        ":80",
        "host:0",
        "host:65536",
        "http://host:80",
        "::1:80",
        "a b:80",
        "h:\uff18\uff10",
    ],
)
def test_what_cannot_be_dialled_is_no_address(address: str) -> None:
    with pytest.raises(InvalidArgument, match="is no address"):
        CreateSandboxResponse("s-1", address)
    with pytest.raises(InvalidArgument, match="is no address"):
        LaunchProcessResponse("p-1", address)


@pytest.mark.parametrize("sandbox_id", ["s-1", "fleet:i-0abc:s-1", "direct:i-0abc"])
def test_an_id_may_name_a_machine_too(sandbox_id: str) -> None:
    assert check_sandbox_id(sandbox_id) == sandbox_id


@pytest.mark.parametrize(
    "sandbox_id", ["", ":", "fleet::s", "../x", "a:../x", "a/b", "fleet:i:", "é", "a\0b", "a" * 600]
)
def test_what_is_no_id_is_refused(sandbox_id: str) -> None:
    with pytest.raises(InvalidArgument, match="is not allowed"):
        check_sandbox_id(sandbox_id)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: CreateSandboxRequest(timeout_s=0), "timeout_s"),
        (lambda: CreateSandboxRequest(timeout_s=2 * limits.SESSION_LIFETIME_S_MAX), "timeout_s"),
        (lambda: CreateSandboxRequest(template=""), "template"),
        (lambda: CreateSandboxRequest(labels={"": "x"}), "label key"),
        (lambda: CreateSandboxRequest(request_id="a/b"), "request id"),
        (lambda: LaunchProcessRequest("s", ""), "needs a program"),
        (lambda: LaunchProcessRequest("s", "x", ("a\0b",)), "NUL"),
        (lambda: LaunchProcessRequest("s", "x", expose_port=0), "expose_port"),
        (lambda: LaunchProcessRequest("s", "x", expose_port=65536), "expose_port"),
        (lambda: LaunchProcessRequest("s", "x", process_id=".."), "process id"),
        (lambda: KillProcessRequest("s", "p", 0), "signal"),
        (lambda: KillProcessRequest("s", "p", 65), "signal"),
        (lambda: GetProcessStatusRequest("s", ""), "process id"),
    ],
)
def test_a_wrong_request_cannot_be_made(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        make()


def test_variables_are_not_shown() -> None:
    """Keys of APIs are among them, and requests are printed."""
    assert "sk-123" not in repr(LaunchProcessRequest("s", "x", envs={"KEY": "sk-123"}))
