"""`sandlot serve`: what it refuses before it begins, whom it answers, and how it ends."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot import Client, Sandbox
from sandlot.model import CallOutput, CallRequest, Resources, SessionSpec, limits
from sandlot.rpc.client import HostClient
from sandlot.rpc.messages import PROCEDURES
from tests.serving import PATIENCE_S, Server, ask, certificate, environment, raw, read_all, server
from tests.waiting import until

THOUSANDS = 10_000
ROOM = THOUSANDS - 1000  # of the server
# For a healthy client on a machine that does other things: the kernel asks again after one and after three seconds for
# what it dropped. With nothing beside it, the worst is half a second.
SLOWEST_S = 8.0
SLOW_BODY = (
    b"POST /sandlot.v1.HostService/GetVersion HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{"
)
HUNDREDS = 300
# All but its body, which is `{}`.
ASK = (
    f"POST {PROCEDURES['HealthCheck'].path} HTTP/1.1\r\nhost: localhost\r\n"
    "content-type: application/json\r\ncontent-length: 2\r\n\r\n"
).encode()


@pytest.fixture
def served(data_dir: Path) -> Iterator[Server]:
    with server(data_dir, "--log-format", "json", "--access-log") as one:
        yield one


def fails(*arguments: str) -> str:
    """What it says when it does not begin."""
    ran = subprocess.run(
        [sys.executable, "-m", "sandlot", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 2, ran.stderr
    return ran.stderr


def test_every_mistake_is_told_at_once_and_nothing_is_made(tmp_path: Path) -> None:
    data, config = tmp_path / "data", tmp_path / "sandlot.toml"
    config.write_text("warm_pool = -1\n")
    words = ("--data-dir", str(data), "serve", "--config", str(config))
    said = fails(*words, "--listen", "0.0.0.0:8700", "--log-level", "loud", "--tls-key", str(tmp_path / "none"))
    for part in ("warm_pool in ", "--listen", "--log-level", "--tls-key"):
        assert part in said
    (tmp_path / "key").write_text("no key")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = f"127.0.0.1:{port},unix:{tmp_path}/no/such/folder/s"
        key = str(tmp_path / "key")
        said = fails("--data-dir", str(data), "serve", "--listen", place, "--tls-certificate", key, "--tls-key", key)
    for part in (str(port), "no/such/folder", "no certificate"):
        assert part in said
    assert not data.exists()


def test_it_tells_how_it_is(served: Server) -> None:
    assert served.ask("/healthz").document == {"status": "ok"}
    ready = served.ask("/readyz")
    assert ready.document["status"] in ("healthy", "degraded")
    assert ready.status == 200
    figures = served.ask("/metrics")
    assert figures.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = figures.body.decode()
    assert re.search(r"^sandlot_sessions 0\.0$", text, re.MULTILINE)
    assert re.search(r'^sandlot_requests_total\{procedure="readyz",status="200"\} 1\.0$', text, re.MULTILINE)
    served.ask("/made/up")
    text = served.ask("/metrics").body.decode()
    assert 'procedure="other",status="404"' in text
    assert "made/up" not in text, "whoever asks does not make figures"
    assert served.ask("/nothing").document["code"] == "unimplemented"


def test_pages_of_browsers_are_refused(served: Server) -> None:
    assert served.ask("/healthz", Host="evil.example").status == 403
    assert served.ask("/healthz", Origin="http://evil.example").status == 403
    assert served.ask("/healthz", Sec_Fetch_Site="cross-site").status == 403
    refused = served.ask("/x", "POST", b"{}", Origin="null").document
    assert refused["code"] == "permission_denied"


def test_every_request_has_an_id_and_a_line_and_no_secret_is_in_it(served: Server) -> None:
    given = served.ask("/healthz?api_key=hunter2", X_Request_Id="mine-1", Authorization="Bearer hunter2")
    assert given.headers["x-request-id"] == "mine-1"
    made = served.ask("/healthz", X_Request_Id="no such id").headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{16}", made)
    served.stop()
    lines = [json.loads(line) for line in served.log.splitlines()]
    told = {line["request"]: line for line in lines if line["logger"] == "sandlot.access"}
    assert told["mine-1"]["status"] == told[made]["status"] == 200
    assert "hunter2" not in served.log


def test_it_says_at_its_start_whom_it_listens_to(served: Server) -> None:
    assert "for this machine alone, because there are no keys" in served.log


async def test_hundreds_of_slow_clients_do_not_disturb_others(data_dir: Path) -> None:
    with server(data_dir, "--header-timeout-s", "2") as one, contextlib.ExitStack() as stack:
        for _ in range(HUNDREDS):
            stack.enter_context(raw(one.port, b""))
            stack.enter_context(raw(one.port, b"POST /x HTTP/1.1\r\nhost: localhost\r\nx-slow: "))
        assert all(one.ask("/healthz").status == 200 for _ in range(20))

        def waiting() -> float:
            found = re.search(r"^sandlot_connections_waiting (\S+)$", one.ask("/metrics").body.decode(), re.MULTILINE)
            return float(found[1]) if found else -1

        assert await until(lambda: waiting() == 0), "they are not waited for"
        assert "Traceback" not in one.log


@pytest.mark.root
@pytest.mark.timeout(240)
def test_ten_thousand_slow_clients_hold_little_and_nobody_up(data_dir: Path) -> None:
    """Silent ones, heads and bodies that do not go on: more of them than the server takes, as fast as they can."""
    wanted = THOUSANDS + 512
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, before[1])))
    kinds = (b"", b"POST /x HTTP/1.1\r\nhost: localhost\r\nx-slow: ", SLOW_BODY)
    try:
        with server(data_dir, "--connections-max", str(ROOM)) as one, contextlib.ExitStack() as stack:
            assert one.ask("/healthz").status == 200
            held, healthy = memory_kib(one.process.pid), Healthy(one)
            with healthy:
                for number in range(THOUSANDS):
                    slow = stack.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=PATIENCE_S))
                    with contextlib.suppress(ConnectionError):  # it was put out already
                        slow.sendall(kinds[number % len(kinds)])
            assert set(healthy.statuses) == {200}
            assert statistics.median(healthy.took_s) < SLOWEST_S / 4
            assert max(healthy.took_s) < SLOWEST_S
            each = (memory_kib(one.process.pid) - held) / THOUSANDS
            assert 0.5 < each < 32, "KiB: they are there, and small"
            found = re.search(r'^sandlot_connections_ended_total\{why="refused"\} (\S+)$', metrics(one), re.MULTILINE)
            assert found, "it is counted"
            assert float(found[1]) == 0
            assert "Traceback" not in one.log
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Healthy(threading.Thread):
    """A client that asks again and again, each time on a new connection, until it is left, and once more then."""

    def __init__(self, asked: Server) -> None:
        super().__init__(daemon=True)
        self._server = asked
        self._is_left = threading.Event()
        self.statuses: list[int | str] = []
        self.took_s: list[float] = []

    def run(self) -> None:
        is_last = False
        while not is_last:
            is_last, began = self._is_left.is_set(), time.monotonic()
            try:
                self.statuses.append(self._server.ask("/healthz").status)
            except (OSError, http.client.HTTPException) as error:
                self.statuses.append(repr(error))
            self.took_s.append(time.monotonic() - began)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *failure: object) -> None:
        self._is_left.set()
        self.join(PATIENCE_S)


def metrics(asked: Server) -> str:
    return asked.ask("/metrics").body.decode()


def memory_kib(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found, "a process that runs has memory"
    return int(found[1])


def test_it_answers_who_is_there_before_it_ends(data_dir: Path) -> None:
    with server(data_dir) as one:
        slow = raw(one.port, ASK + b"{")
        idle = one.connection()
        assert ask(idle, "/healthz").status == 200
        ended = threading.Timer(0.5, slow.sendall, [b"}"])
        ended.start()
        assert one.stop() == 0
        ended.join()
        with slow:
            assert b"HTTP/1.1 200 " in read_all(slow)
        idle.close()
        with pytest.raises(ConnectionRefusedError):
            raw(one.port, b"")


def test_who_takes_too_long_is_cut_off(data_dir: Path) -> None:
    with server(data_dir, "--drain-s", "0.2") as one, raw(one.port, ASK) as left:
        assert one.ask("/healthz").status == 200
        assert one.stop(signal.SIGINT) == 0
        assert read_all(left) == b""


def test_a_path_is_listened_on_and_removed(data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "sandlot.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with server(data_dir, listen=f"unix:{path}") as one:
        assert path.stat().st_mode & 0o777 == 0o660
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(PATIENCE_S)
            connected.connect(str(path))
            connected.sendall(b"GET /healthz HTTP/1.1\r\nhost: whatever\r\nconnection: close\r\n\r\n")
            assert b'{"status": "ok"}' in read_all(connected)
        assert one.stop() == 0
        assert not path.exists()


def peer_name(port: int, trust: Path, own: tuple[Path, Path] | None = None) -> str:
    """Whom a client meets who trusts one certificate. Raises ssl.SSLError, and ConnectionError where it is refused."""
    context = ssl.create_default_context(cafile=str(trust))
    if own is not None:
        context.load_cert_chain(*own)
    connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE_S, context=context)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status": "ok"}'
        met: Any = connection.sock.getpeercert()
        return {name: value for ((name, value),) in met["subject"]}["commonName"]


async def test_certificates_are_exchanged_while_it_runs(data_dir: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for name in ("first", "second"):
        certificate(keys, name)
    for part in ("pem", "key"):
        (keys / f"now.{part}").write_bytes((keys / f"first.{part}").read_bytes())
    tls = ("--tls-certificate", str(keys / "now.pem"), "--tls-key", str(keys / "now.key"))
    with server(data_dir, *tls) as one:
        assert one.listen[0].startswith("https://")
        assert peer_name(one.port, keys / "first.pem") == "first"
        with raw(one.port, b"GET / HTTP/1.1\r\n\r\n") as plain:
            assert read_all(plain)[:4] != b"HTTP"
        (keys / "now.key").write_text("broken")
        one.process.send_signal(signal.SIGHUP)
        assert await until(lambda: "the settings stay as they were" in one.log)
        assert peer_name(one.port, keys / "first.pem") == "first"
        for part in ("pem", "key"):
            (keys / f"now.{part}").write_bytes((keys / f"second.{part}").read_bytes())
        one.process.send_signal(signal.SIGHUP)
        assert await until(lambda: "the settings were read again" in one.log)
        assert peer_name(one.port, keys / "second.pem") == "second"


def test_clients_need_a_certificate_where_that_is_wanted(data_dir: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    for name in ("server", "root", "stranger"):
        certificate(keys, name)
    certificate(keys, "client", "root")
    tls = ("--tls-certificate", str(keys / "server.pem"), "--tls-key", str(keys / "server.key"))
    with server(data_dir, *tls, "--tls-client-ca", str(keys / "root.pem")) as one:
        trust = keys / "server.pem"
        assert peer_name(one.port, trust, (keys / "client.pem", keys / "client.key")) == "server"
        for own in (None, (keys / "stranger.pem", keys / "stranger.key")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                peer_name(one.port, trust, own)


async def test_limits_and_the_log_are_read_again(data_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "sandlot.toml"
    config.write_text('log_level = "info"\n')
    with server(data_dir, "--config", str(config)) as one:
        one.ask("/healthz")
        assert "path=/healthz" not in one.log
        config.write_text('access_log = true\nconnections_max = 1\nwarm_pool = 1\nlog_format = "json"\n')
        one.process.send_signal(signal.SIGHUP)
        assert await until(lambda: "the settings were read again" in one.log)
        assert await until(lambda: "these take a restart: engine" in one.log)
        assert one.ask("/healthz").status == 200
        assert await until(lambda: '"path": "/healthz"' in one.log)
        with raw(one.port, b"") as silent:
            assert await until(lambda: one.ask("/healthz").status == 503)
            silent.close()
        config.write_text("nonsense = 1\n")
        one.process.send_signal(signal.SIGHUP)
        assert await until(lambda: "nonsense" in one.log)
        assert await until(lambda: one.ask("/healthz").status == 200)


def test_systemd_listens_and_is_told(data_dir: Path, tmp_path: Path) -> None:
    start = "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-m", "sandlot", "--data-dir", str(data_dir), "serve"]
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearing,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        hearing.bind(str(tmp_path / "notify"))
        hearing.settimeout(PATIENCE_S)
        waiting = raw(listening.getsockname()[1], b"GET /healthz HTTP/1.1\r\nhost: x.localhost\r\n\r\n")
        process = subprocess.Popen(
            [sys.executable, "-c", start, *words],
            env=environment(LISTEN_FDS="1", NOTIFY_SOCKET=str(tmp_path / "notify")),
            preexec_fn=lambda: os.dup2(listening.fileno(), 3),
            pass_fds=(3,),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert hearing.recv(1000).startswith(b"READY=1")
            with waiting:
                assert waiting.recv(1000).startswith(b"HTTP/1.1 403 ")
            process.terminate()
            assert hearing.recv(1000) == b"STOPPING=1"
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.root
async def test_a_guest_that_waited_gets_what_its_session_asks_for(data_dir: Path) -> None:
    """Labels, variables and limits are bound when it is taken."""
    with server(data_dir, "--warm-pool", "2") as one:
        assert await until(lambda: len(list((data_dir / "volumes").iterdir())) == 2)
        async with HostClient(f"http://127.0.0.1:{one.port}") as host:
            await asyncio.sleep(0.5)
            before = float(Path("/proc/uptime").read_text().split()[0])
            limited = Resources(memory_bytes=256 * limits.MIB, pids=50, open_files=99)
            spec = SessionSpec(session_id="warm", labels={"a": "b"}, envs={"WHO": "me"}, resources=limited)
            made = await host.create(spec)
            assert (made.labels, made.resources.memory_bytes) == ({"a": "b"}, 256 * limits.MIB)
            script = "cut -d' ' -f22 /proc/1/stat; echo $WHO; ulimit -n"
            async with host.call(CallRequest("warm", ("sh", "-c", script))) as stream:
                told = [event.data async for event in stream if isinstance(event, CallOutput)]
            begun, who, files = b"".join(told).split()
            assert int(begun) / os.sysconf("SC_CLK_TCK") < before, "its guest was begun for it"
            assert (who, files) == (b"me", b"99")
            await host.destroy("warm")


def test_one_trace_leads_from_the_program_to_the_spawn(data_dir: Path) -> None:
    trace, sdk = (pytest.importorskip(f"opentelemetry.{name}") for name in ("trace", "sdk.trace"))
    tracer = sdk.TracerProvider().get_tracer("test")
    with server(data_dir, "--tracing", env=environment(OTEL_TRACES_EXPORTER="console")) as one:
        with Client(url=f"http://127.0.0.1:{one.port}") as client, tracer.start_as_current_span("mine") as mine:
            assert trace.get_current_span() is mine
            with Sandbox.create(runtime="none", client=client) as sandbox:
                assert sandbox.commands.run("echo traced").stdout == "traced\n"
        assert one.stop() == 0
        spans = re.findall(r'"name": "([^"]+)",\s+"context": \{\s+"trace_id": "0x([0-9a-f]+)"', _rest(one))
    told = {name for name, trace_id in spans if int(trace_id, 16) == mine.get_span_context().trace_id}
    assert {"spawn", f"POST {PROCEDURES['CreateSession'].path}", f"POST {PROCEDURES['Call'].path}"} <= told


def _rest(one: Server) -> str:
    assert one.process.stdout
    return one.process.stdout.read().decode()
