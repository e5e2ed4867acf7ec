"""What previews let in ends when it may not go on."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from sandlot import Client, Sandbox
from sandlot.model import Scope, token_of_key
from sandlot.tenants.keys import KeyStore
from tests.e2e.preview_stage import TOKEN, at, is_open, staged, websocket
from tests.serving import read_all

pytestmark = pytest.mark.root


def test_what_a_key_gave_on_ends_with_it(data_dir: Path) -> None:
    """Its signed addresses, the cookies of those, and what is open by either; and nothing that another key gave on."""
    keys = KeyStore(data_dir)
    first, second = (keys.create(name, "a", Scope.USE).secret for name in ("first", "second"))
    path = "/preview/tenant-a.work/3000/"
    with staged(data_dir, key=second) as stage:
        one, host = stage.server, stage.host
        narrow = token_of_key(second, "work", time.time() + 30, Scope.USE)
        with Client(url=f"http://{stage.api}", api_key=narrow) as client:
            assert Sandbox.connect("work", client=client).preview(3000).expires < time.time() + 35, "with its token"
        with Client(url=f"http://{stage.api}", api_key=first) as client:
            token = Sandbox.connect("work", client=client).preview(3000).token
        cookie = at(one, host, f"/?sandlot-token={token}", Accept="text/html").headers["set-cookie"].partition(";")[0]
        with closing(websocket(one, host, f"{TOKEN}: {stage.token}")) as kept:
            lines = [websocket(one, host, way) for way in (f"{TOKEN}: {token}", f"Cookie: {cookie}")]
            assert at(one, host, "/", Cookie=cookie).status == 200
            assert all(is_open(line) for line in [*lines, kept])
            keys.revoke("first")
            for line in lines:
                with closing(line):
                    assert read_all(line) == b""
            assert at(one, host, "/", Cookie=cookie).status == 401
            assert at(one, host, f"/?sandlot-token={token}", Accept="text/html").status == 401
            assert one.ask(path, X_Sandlot_Preview_Token=token).status == 401
            assert one.ask(path, X_Sandlot_Preview_Token=stage.token).status == 200
            assert is_open(kept)


def test_a_port_that_is_private_again_is_left_by_everybody(data_dir: Path) -> None:
    """But not by whoever has a token for it."""
    with staged(data_dir, "--preview-public") as stage:
        stage.sandbox.preview(3000, public=True)
        known = websocket(stage.server, stage.host, f"{TOKEN}: {stage.token}")
        with closing(known), closing(websocket(stage.server, stage.host)) as anybody:
            stage.sandbox.preview(3000, public=False)
            assert read_all(anybody) == b""
            assert at(stage.server, stage.host, "/").status == 401
            assert is_open(known)
