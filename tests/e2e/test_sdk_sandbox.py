"""`Sandbox`: made, found, listed, left, killed."""

import asyncio
import copy
import pickle
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from sandlot import (
    AsyncSandbox,
    CapabilityNotSupported,
    Client,
    InvalidArgument,
    InvalidState,
    NetworkMode,
    NetworkPolicy,
    Sandbox,
    SessionExists,
    SessionNotFound,
    SessionState,
    TemplateNotFound,
)
from sandlot.contracts import Host
from sandlot.host.service import SandboxHostService
from sandlot.model import LimitHit, Resources, SessionFilter, SessionPage, SessionSpec
from tests.unit.sdk.stage import RUNTIMES, directory, opened

DAY_S = 24 * 3600.0


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Generator[dict[str, Client]]:
    """One for each runtime."""
    base = tmp_path_factory.mktemp("sdk")
    with (
        directory(base / "none", shared_templates) as plain,
        directory(base / "namespaces", shared_templates) as walled,
        opened(plain) as first,
        opened(walled) as second,
    ):
        yield {"none": first, "namespaces": second}


@pytest.fixture
def client(clients: dict[str, Client]) -> Client:
    return clients["none"]


@pytest.fixture
def walled(clients: dict[str, Client]) -> Client:
    return clients["namespaces"]


def ids(client: Client, **query: Any) -> set[str]:
    return {info.session_id for info in Sandbox.list(client=client, **query)}


# ---- making ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_is_asked_for_is_there(runtime: str, clients: dict[str, Client]) -> None:
    client = clients[runtime]
    before = time.time()
    with Sandbox.create(
        "builtin",
        id=f"asked-{runtime}",
        labels={"task": "x", "run": "1"},
        envs={"A": "from the sandbox", "B": "kept"},
        timeout=100,
        runtime=runtime,
        storage="layers",
        request_id=f"request-{runtime}",
        client=client,
    ) as sandbox:
        info = sandbox.info()
        assert (sandbox.id, info.session_id) == (f"asked-{runtime}", f"asked-{runtime}")
        assert (info.labels, info.runtime, info.storage) == ({"task": "x", "run": "1"}, runtime, "layers")
        assert (info.state, info.template, info.reason) == (SessionState.ACTIVE, "builtin", "")
        assert before + 99 < info.expires < time.time() + 101
        assert info.space_used is not None
        assert sandbox.commands.run("echo $A, $B, $PWD", envs={"B": "given"}).stdout.strip() == (
            f"from the sandbox, given, {info.workspace}"
        )
        assert repr(sandbox) == f"Sandbox('asked-{runtime}')"
        assert sandbox.client is client
        again = Sandbox.create(runtime=runtime, request_id=f"request-{runtime}", client=client)
        assert again.id == sandbox.id
        with pytest.raises(SessionExists, match="choose another id"):
            Sandbox.create(id=sandbox.id, runtime=runtime, client=client)


@pytest.mark.root
def test_the_user_of_a_sandbox(walled: Client) -> None:
    with Sandbox.create(user="root", client=walled) as sandbox:
        assert sandbox.commands.run("id -un").stdout == "root\n"
        assert sandbox.files.write("/etc/made", "").uid == 0


@pytest.mark.root
def test_limits_of_a_sandbox_and_of_a_command(walled: Client) -> None:
    with Sandbox.create(open_files=64, client=walled) as sandbox:
        assert sandbox.info().resources.open_files == 64
        assert sandbox.commands.run("ulimit -n").stdout == "64\n"
        assert sandbox.commands.run("ulimit -n", resources=Resources(open_files=32)).stdout == "32\n"
        assert sandbox.commands.run("echo 0123456789", output_max=4).limit is LimitHit.OUTPUT


UNLIMITED: list[dict[str, Any]] = [{"cpus": 0.5}, {"memory_bytes": 1 << 30}, {"pids": 100}, {"open_files": 100}]
UNABLE: list[dict[str, Any]] = [
    {"disk_bytes": 1 << 30, "storage": "layers"},
    {"network": NetworkPolicy(NetworkMode.ALLOW_LIST, ("example.org",))},
    {"secrets": {"KEY": "value"}},
]


@pytest.mark.parametrize(
    ("wish", "runtime"),
    [
        *(pytest.param(wish, "none", id=next(iter(wish))) for wish in (*UNLIMITED, *UNABLE)),
        *(pytest.param(wish, "namespaces", id=f"{next(iter(wish))}-walled", marks=pytest.mark.root) for wish in UNABLE),
    ],
)
def test_what_cannot_be_had_is_refused_and_nothing_is_made(
    wish: dict[str, Any], runtime: str, clients: dict[str, Client]
) -> None:
    client = clients[runtime]
    before = ids(client)
    with pytest.raises(CapabilityNotSupported) as caught:
        Sandbox.create(runtime=runtime, client=client, **wish)
    assert caught.value.next_step
    assert "value" not in str(caught.value), "a secret is not told"
    assert ids(client) == before


def test_a_user_where_there_are_none_is_refused(client: Client) -> None:
    before = ids(client)
    with pytest.raises(CapabilityNotSupported, match="users"):
        Sandbox.create(runtime="none", user="root", client=client)
    assert ids(client) == before
    with Sandbox.create(runtime="none", client=client) as sandbox, pytest.raises(CapabilityNotSupported):
        sandbox.commands.run("id", user="root")


WRONG: list[dict[str, Any]] = [
    {"id": "no id"},
    {"id": "a/../b"},
    {"request_id": "no id"},
    {"timeout": 0},
    {"timeout": float("nan")},
    {"labels": {"": "x"}},
    {"envs": {"A=B": "x"}},
    {"cpus": -1},
    {"ports": [70000]},
    {"user": ""},
    {"template": "../escape"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_arguments_are_refused_before_anything_happens(wrong: dict[str, Any], tmp_path: Path) -> None:
    with Client(data_dir=tmp_path / "never") as client, pytest.raises(InvalidArgument):
        Sandbox.create(client=client, **wrong)
    assert not (tmp_path / "never").exists(), "an engine was started"


@pytest.mark.parametrize("wrong", [{"runtime": "magic"}, {"runtime": "none", "storage": "paper"}], ids=str)
def test_unknown_choices_are_told_the_known_ones(wrong: dict[str, Any], client: Client) -> None:
    with pytest.raises(InvalidArgument, match="use one of: auto, "):
        Sandbox.create(client=client, **wrong)


@pytest.mark.root
def test_an_unknown_template(walled: Client) -> None:
    with pytest.raises(TemplateNotFound):
        Sandbox.create("never-made", client=walled)


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_making_the_object_does_nothing_and_connecting_looks(client: Client) -> None:
    assert Sandbox("not-there", client=client).id == "not-there"
    with pytest.raises(SessionNotFound, match="not-there"):
        Sandbox.connect("not-there", client=client)
    with pytest.raises(InvalidArgument):
        Sandbox("no id", client=client)
    for attempt in (
        lambda: Sandbox("not-there", client=client).commands.run("true"),
        lambda: Sandbox("not-there", client=client).files.read("x"),
        lambda: Sandbox("not-there", client=client).commands.list(),
    ):
        with pytest.raises(SessionNotFound):
            attempt()


def test_a_sandbox_that_was_connected_to_outlives_the_block(client: Client) -> None:
    with Sandbox.create(runtime="none", client=client) as sandbox:
        with Sandbox.connect(sandbox.id, client=client) as found:
            assert found.commands.run("echo a > shared").ok
        assert sandbox.files.read("shared") == "a\n"
    with pytest.raises(SessionNotFound):
        sandbox.info()


def test_listing_by_labels_and_states(client: Client) -> None:
    made = [
        Sandbox.create(runtime="none", labels={"job": "list", "n": str(number)}, client=client) for number in range(3)
    ]
    listed = [info.session_id for info in Sandbox.list(labels={"job": "list"}, client=client)]
    assert listed == [sandbox.id for sandbox in made], "oldest first"
    assert ids(client, labels={"job": "list", "n": "1"}) == {made[1].id}
    assert ids(client, labels={"job": "list", "n": "9"}) == set()
    assert ids(client, labels={"job": "list"}, states=[SessionState.ACTIVE]) == set(listed)
    assert ids(client, labels={"job": "list"}, states=[SessionState.FAILED, SessionState.PAUSED]) == set()
    for sandbox in made:
        sandbox.kill()
    assert ids(client, labels={"job": "list"}) == set()


@dataclass
class SmallPages:
    """A host that gives two sessions at a time, and has another one do all else."""

    host: SandboxHostService
    pages: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    async def list(self, query: SessionFilter) -> SessionPage:
        self.pages += 1
        return await self.host.list(replace(query, limit=2))


async def test_listing_goes_on_to_the_last_page(host: SandboxHostService) -> None:
    made = [
        (await host.create(SessionSpec(runtime="none", labels={"odd": str(number % 2)}))).session_id
        for number in range(7)
    ]
    small = SmallPages(host)
    client = Client(host=cast("Host", small))
    assert [info.session_id for info in await AsyncSandbox.list(client=client)] == made
    assert small.pages == 4
    odd = await AsyncSandbox.list(labels={"odd": "1"}, states=[SessionState.ACTIVE], client=client)
    assert [info.session_id for info in odd] == made[1::2]


# ---- leaving and killing ---------------------------------------------------------------------------------------------


def test_killing_twice(client: Client) -> None:
    sandbox = Sandbox.create(runtime="none", client=client)
    assert (sandbox.kill(), sandbox.kill(), Sandbox("never-there", client=client).kill()) == (True, False, False)


def test_the_block_kills_whatever_happens_in_it(client: Client) -> None:
    for error in (ValueError("mine"), SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, Sandbox.create(runtime="none", client=client) as sandbox:
            raise error
        assert caught.value is error
        assert sandbox.id not in ids(client)
    with Sandbox.create(runtime="none", client=client) as sandbox:
        sandbox.kill()


def test_what_was_detached_outlives_the_block(client: Client) -> None:
    with Sandbox.create(runtime="none", detach=True, client=client) as sandbox:
        pass
    assert sandbox.kill()


async def test_the_async_block(client: Client) -> None:
    async with await AsyncSandbox.create(runtime="none", client=client) as sandbox:
        assert (await sandbox.commands.run("echo a")).stdout == "a\n"
        assert repr(sandbox) == f"AsyncSandbox({sandbox.id!r})"
    assert not await sandbox.kill()
    with pytest.raises(KeyError):
        async with await AsyncSandbox.create(runtime="none", client=client) as sandbox:
            raise KeyError
    assert sandbox.id not in ids(client)


async def test_a_cancelled_block_kills(client: Client) -> None:
    made: list[str] = []
    inside = asyncio.Event()

    async def work() -> None:
        async with await AsyncSandbox.create(runtime="none", client=client) as sandbox:
            made.append(sandbox.id)
            inside.set()
            await sandbox.commands.run("sleep 60")

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made[0] not in ids(client)


async def test_a_create_that_is_cancelled_at_any_moment_leaves_nothing(client: Client) -> None:
    """Also when it was just made, and the answer was on its way."""
    before = ids(client)
    done = 0
    for number in range(60):
        task = asyncio.create_task(AsyncSandbox.create(runtime="none", client=client))
        await asyncio.sleep(number / 4000)
        if number % 3 == 0:
            time.sleep(0.02)  # noqa: ASYNC251 - the answer comes, unseen, while nobody looks
        task.cancel()
        try:
            await (await task).kill()
            done += 1
        except asyncio.CancelledError:
            pass
    assert ids(client) == before
    assert done < 60, "nothing was cancelled"


def test_a_sandbox_expires(client: Client) -> None:
    sandbox = Sandbox.create(runtime="none", timeout=0.2, client=client)
    deadline = time.monotonic() + 5
    while sandbox.id in ids(client) and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(SessionNotFound):
        sandbox.info()
    assert not sandbox.kill()


def test_a_sandbox_cannot_be_sent_elsewhere_and_says_what_can(client: Client) -> None:
    with Sandbox.create(runtime="none", client=client) as sandbox:
        for attempt in (lambda: pickle.dumps(sandbox), lambda: copy.deepcopy(sandbox.commands)):
            with pytest.raises(InvalidState, match="send its id"):
                attempt()
        assert copy.copy(sandbox).commands.run("echo a").stdout == "a\n"


def test_a_kind_of_ones_own(client: Client) -> None:
    class Mine(Sandbox):
        def greet(self) -> str:
            return self.commands.run("echo hi").stdout

    with Mine.create(runtime="none", client=client) as sandbox:
        assert sandbox.greet() == "hi\n"
        assert repr(Mine.connect(sandbox.id, client=client)) == f"Mine({sandbox.id!r})"
