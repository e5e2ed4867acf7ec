"""Settings are read once, checked whole and reported whole."""

import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from sandlot.config.settings import load
from sandlot.config.variables import VARIABLES
from sandlot.model import AUTO, InvalidArgument, Resources, limits


def test_defaults_of_an_empty_environment() -> None:
    settings = load({})
    assert settings.storage == settings.runtime == AUTO
    assert settings.sessions_max == limits.SESSIONS_MAX
    assert settings.warm_pool == 0
    assert settings.keeper.name == "sandlot-keeper"
    assert settings.keeper.is_absolute()
    assert settings.data.is_absolute()
    assert (settings.resources, settings.overcommit) == (Resources(pids=4096), 2.0)


def test_limits_of_sessions_that_ask_for_none() -> None:
    settings = load(
        {
            "SANDLOT_DEFAULT_PIDS": "0",
            "SANDLOT_DEFAULT_MEMORY": "2g",
            "SANDLOT_DEFAULT_CPUS": "1.5",
            "SANDLOT_DEFAULT_OPEN_FILES": "1024",
            "SANDLOT_OVERCOMMIT": "1.25",
        }
    )
    assert settings.resources == Resources(cpus=1.5, memory_bytes=2 * limits.GIB, open_files=1024)
    assert settings.overcommit == 1.25
    wrong = {"SANDLOT_DEFAULT_MEMORY": "1k", "SANDLOT_DEFAULT_CPUS": "0", "SANDLOT_OVERCOMMIT": "nan"}
    with pytest.raises(InvalidArgument) as refused:
        load(wrong)
    assert all(name in refused.value.message for name in wrong)


def test_templates_that_are_kept_warm() -> None:
    assert load({"SANDLOT_WARM_TEMPLATES": "app:3=2,db"}).warm_templates == (("app:3", 2), ("db:latest", 1))
    for wrong in ("app:3=x", "a b", "=2", "app=1000000"):
        with pytest.raises(InvalidArgument, match="SANDLOT_WARM_TEMPLATES"):
            load({"SANDLOT_WARM_TEMPLATES": wrong})


def test_empty_variables_are_as_good_as_none() -> None:
    names = [variable.name for variable in VARIABLES]
    assert load(dict.fromkeys(names, "")) == load({})


def test_every_variable_is_read(tmp_path: Path) -> None:
    settings = load(
        {
            "SANDLOT_DATA_DIR": str(tmp_path),
            "SANDLOT_STORAGE": "directory",
            "SANDLOT_RUNTIME": "none",
            "SANDLOT_SESSIONS_MAX": "7",
            "SANDLOT_WARM_POOL": "3",
            "SANDLOT_TURNS_KEPT": "9",
            "SANDLOT_SNAPSHOT_PREFIX": "step",
            "SANDLOT_LOCAL_DISK_SNAPSHOTS": "on",
            "SANDLOT_SPACE_WARN": "0.5",
            "SANDLOT_SPACE_CRITICAL": "0.75",
            "SANDLOT_HEALTH_INTERVAL_S": "2.5",
            "SANDLOT_SHUTDOWN_TIMEOUT_S": "4",
            "SANDLOT_PAUSE_DRAIN_S": "1.5",
            "SANDLOT_KEEPER": str(tmp_path / "keeper"),
        }
    )
    assert (settings.data, settings.keeper) == (tmp_path, tmp_path / "keeper")
    assert (settings.storage, settings.runtime) == ("directory", "none")
    assert (settings.sessions_max, settings.warm_pool) == (7, 3)
    assert (settings.turns_kept, settings.snapshot_prefix) == (9, "step")
    assert (settings.space_warn, settings.space_critical, settings.health_interval_s) == (0.5, 0.75, 2.5)
    assert (settings.shutdown_timeout_s, settings.pause_drain_s) == (4, 1.5)


def test_a_relative_directory_does_not_move_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({"SANDLOT_DATA_DIR": "data"}).data == tmp_path / "data"


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_WARM_POOL", "5")
    assert load().warm_pool == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root keeps its data in one place")
def test_data_of_a_user_lies_in_the_home() -> None:
    assert load({"HOME": "/tmp/me"}).data == Path("/tmp/me/.local/share/sandlot")
    assert load({"HOME": "/tmp/me", "XDG_DATA_HOME": "/tmp/x"}).data == Path("/tmp/x/sandlot")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write there")
def test_data_of_root_lies_in_one_place() -> None:
    assert load({"HOME": "/tmp/me", "XDG_DATA_HOME": "/tmp/x"}).data == Path("/var/lib/sandlot")


def test_one_error_names_every_wrong_variable() -> None:
    with pytest.raises(InvalidArgument) as refused:
        load({"SANDLOT_SESSIONS_MAX": "many", "SANDLOT_WARM_POOL": "-1"})
    for name in ("SANDLOT_SESSIONS_MAX", "SANDLOT_WARM_POOL", "'many'", "'-1'"):
        assert name in refused.value.message


@pytest.mark.parametrize("text", ["0", "28001", "1.5", "1e3", " 5", "5 ", "+5", "0x10", "1_000", "\u0665", "\u00b2"])
def test_only_plain_whole_numbers_in_bounds_count(text: str) -> None:
    with pytest.raises(InvalidArgument, match="SANDLOT_SESSIONS_MAX"):
        load({"SANDLOT_SESSIONS_MAX": text})


@pytest.mark.parametrize("text", ["1", "28000"])
def test_the_bounds_are_allowed(text: str) -> None:
    assert load({"SANDLOT_SESSIONS_MAX": text}).sessions_max == int(text)


def test_a_number_of_absurd_length_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="SANDLOT_SESSIONS_MAX"):
        load({"SANDLOT_SESSIONS_MAX": "9" * 5000})


@pytest.mark.parametrize("text", ["Turn", "a-b", "1a", "a/b", "a" * 33, "\u00e4"])
def test_a_prefix_is_a_plain_word(text: str) -> None:
    with pytest.raises(InvalidArgument, match="SANDLOT_SNAPSHOT_PREFIX"):
        load({"SANDLOT_SNAPSHOT_PREFIX": text})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        load({}).warm_pool = 9  # pyright: ignore[reportAttributeAccessIssue]
