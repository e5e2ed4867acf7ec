"""Serve the engine of a data directory to clients: the SDK, the command line, any client of the wire.

It stops in order with TERM or INT: whoever is there is answered first, and sessions live on. With HUP it reads its
settings again."""

import argparse
import gc
import logging
import os
import signal
from typing import TYPE_CHECKING

from sandlot import registry
from sandlot.cli.context import Context
from sandlot.config.service import ServiceConfig, has_keys, load_service
from sandlot.config.settings import Settings
from sandlot.config.variables import CONFIG, ENGINE, SERVER
from sandlot.model import InvalidArgument

if TYPE_CHECKING:
    from sandlot.wiring.serving import Serving

USAGE = "serve [options]"
_GLOBAL = "SANDLOT_DATA_DIR"  # an option of every verb
_ON_OR_OFF = "`on` or `off`: "
_NEW_OBJECTS = 10_000  # between two looks for garbage that refers to itself
_log = logging.getLogger("sandlot.server")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for heading, variables in (("server", (CONFIG, *SERVER)), ("engine", ENGINE)):
        group = parser.add_argument_group(heading)
        for variable in variables:
            if variable.name != _GLOBAL:
                about = f"{variable.meaning.rstrip('.')} (default: {variable.default})".replace("%", "%%")
                name, place = "--" + variable.key.replace("_", "-"), _place(variable.name)
                if variable.meaning.startswith(_ON_OR_OFF):
                    about = about.removeprefix(_ON_OR_OFF)
                    action = argparse.BooleanOptionalAction
                    group.add_argument(name, action=action, dest=place, help=about.replace("`", ""))
                else:
                    group.add_argument(name, metavar="VALUE", dest=place, help=about.replace("`", ""))


def _place(name: str) -> str:
    return "set_" + name


def settings(args: argparse.Namespace) -> Settings:
    """Of the engine. Raises InvalidArgument that names all that is wrong, of the server too."""
    return _config(args).engine


def _config(args: argparse.Namespace) -> ServiceConfig:
    flags = {
        variable.name: given if isinstance(given, str) else "on" if given else "off"
        for variable in (CONFIG, *SERVER, *ENGINE)
        if (given := getattr(args, _place(variable.name), None)) is not None
    }
    if args.data_dir is not None:
        flags[_GLOBAL] = args.data_dir
    return load_service(flags=flags)


async def run(context: Context) -> int:
    config = _config(context.args)
    registry.load("server", "logs")(config.log_level, config.log_format)
    serving: Serving = registry.load("server", "serving")(config, os.environ, os.getpid(), context.wait_s)

    def on_signal(number: int) -> None:
        if number == signal.SIGHUP:
            _reload(context, serving)
        else:
            serving.stop()

    def ready() -> None:
        # What was loaded stays; looking through it again and again took a fifth of the time of a busy server.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        told = [place.told(with_tls=config.tls is not None) for place in serving.places]
        who = "whoever has a key" if has_keys(config.engine.data) else "this machine alone, because there are no keys"
        _log.info("serving %s, for %s", ", ".join(told), who)
        if context.screen.as_json:
            context.screen.json({"listen": told, "data_dir": str(config.engine.data), "pid": os.getpid()})
        else:
            context.screen.line(f"serving {', '.join(told) or 'nothing'}, data in {config.engine.data}")

    with context.interruption.handled_by(on_signal):
        await serving.run(ready)
    return 0


def _reload(context: Context, serving: "Serving") -> None:
    try:
        left = serving.reload(_config(context.args))
    except InvalidArgument as error:
        _log.error("the settings stay as they were: %s", error)
        return
    _log.info("the settings were read again")
    if left:
        _log.warning("these take a restart: %s", ", ".join(left))
