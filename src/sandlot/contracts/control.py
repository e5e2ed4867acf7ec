"""What an orchestrator holds: sandboxes, wherever they are, and the programs that it starts in them."""

from typing import Protocol

from sandlot.model import (
    CreateSandboxRequest,
    CreateSandboxResponse,
    GetProcessStatusRequest,
    GetProcessStatusResponse,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    SandboxCapabilities,
)


class SandboxControl(Protocol):
    """Many sandboxes, each told by the id that `create_sandbox` gave. Nothing is remembered here that another object on
    the same provider would not know, and none of the verbs waits for another one.

    Every verb raises InvalidArgument, DeadlineExceeded, and Unavailable when whoever provides the sandboxes does not
    answer. Those that take a sandbox raise SessionNotFound when there is none, SessionDestroying and SessionFailed. A
    false capability raises CapabilityNotSupported and changes nothing.
    """

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        """Make one; when this returns it takes everything else. A request id that came before gives the sandbox that
        was made for it, as long as it is there, also while the first request is under way.

        Raises TemplateNotFound, MaxSessionsReached, LimitReached for a longer life or more than there is,
        CapabilityNotSupported for a limit that would not hold, HostUnhealthy. Then there is no sandbox, and nothing is
        left of one.
        """
        ...

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        """End everything in it and give back all that it had. Again, and of one that is gone, does nothing."""
        ...

    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        """Begin a program; when this returns it runs. With an exposed port it is `starting` until it listens there, and
        the address reaches it from then on. A process id that came before tells of the process that has it.

        Raises StartFailed when the program cannot be started, SessionPaused, Conflict when the id is that of another
        program or the port is somebody's already, CapabilityNotSupported for a port where none can be exposed,
        LimitReached.
        """
        ...

    async def kill_process(self, request: KillProcessRequest) -> None:
        """Without a signal all that descends from it is ended, and it has ended when this returns. A signal is sent
        alone and not waited for. One that has ended stays as it is. Raises ProcessNotFound, SessionPaused."""
        ...

    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        """As it is now, whoever launched it. Raises ProcessNotFound."""
        ...

    async def pause_sandbox(self, sandbox_id: str) -> None:
        """Nothing is launched in it from now on. Whether what runs stands still and goes on later, or has ended, is a
        capability. Again does nothing."""
        ...

    async def resume_sandbox(self, sandbox_id: str) -> None:
        """Of one that is not paused does nothing, also where there is no pause. Raises InvalidState when its time is
        up."""
        ...

    async def capabilities(self) -> SandboxCapabilities:
        """What a sandbox without wishes can do here. Raises InvalidState where that is known only when one was
        made."""
        ...
