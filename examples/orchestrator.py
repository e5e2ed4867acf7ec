"""An orchestrator: a sandbox for each job, a worker in each, and an end for all of them.

It remembers nothing but names of its own, so it can die at any line and be started again: what it asks for with a name
that was there before, it gets. Run it with `python examples/orchestrator.py`.
"""

import time

from sandlot import (
    Control,
    CreateSandboxRequest,
    GetProcessStatusRequest,
    LaunchProcessRequest,
    ProcessState,
    Sandbox,
    StartFailed,
)

JOBS = {"sum": "print(sum(range(10)), file=open('answer', 'w'))", "fail": "import sys; sys.exit(3)"}


def begin(control: Control, job: str, program: str) -> str:
    """The sandbox of a job, with its worker: made now, or found again."""
    made = control.create_sandbox(CreateSandboxRequest(labels={"job": job}, timeout_s=600, request_id=f"job-{job}"))
    worker = LaunchProcessRequest(
        made.sandbox_id,
        "python3",
        ("-c", program),
        envs={"API_KEY": "not shown to anyone"},
        process_id="worker",
    )
    print(f"{job}: its worker is {control.launch_process(worker).process_id}")
    return made.sandbox_id


def wait(control: Control, sandbox_id: str) -> int | None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = control.get_process_status(GetProcessStatusRequest(sandbox_id, "worker"))
        if now.status is ProcessState.EXITED:
            return now.exit_code
        time.sleep(0.02)
    return None


def main() -> None:
    control = Control()
    print(f"up to {control.capabilities().concurrent_sandboxes} sandboxes at once")
    sandboxes = {job: begin(control, job, program) for job, program in JOBS.items()}
    again = begin(Control(), "sum", JOBS["sum"])  # as after a crash
    print(f"the same sandbox: {again == sandboxes['sum']}")

    for job, sandbox_id in sandboxes.items():
        print(f"{job}: exit code {wait(control, sandbox_id)}")
    answer = Sandbox.connect(sandboxes["sum"]).files.read("answer")
    print(f"the answer is {answer.strip()}")

    control.pause_sandbox(sandboxes["sum"])  # uses no processor until it is resumed
    control.resume_sandbox(sandboxes["sum"])
    try:
        control.launch_process(LaunchProcessRequest(sandboxes["sum"], "no-such-program"))
    except StartFailed as error:
        print(f"refused: {error.code}")
    for sandbox_id in sandboxes.values():
        control.destroy_sandbox(sandbox_id)
        control.destroy_sandbox(sandbox_id)  # again does nothing
    print("nothing is left")


if __name__ == "__main__":
    main()
