"""From the words of a command line to what was asked. Only the verb that is used is loaded."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from sandlot import __version__
from sandlot.cli.verbs import TAKE_COMMAND, TAKE_WORDS, VERBS, load
from sandlot.model import InvalidArgument

EXIT_USAGE = 2


class Parser(argparse.ArgumentParser):
    """Raises what is wrong with the command line as the same error that everything else raises."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(message, next_step=f"`{self.prog} --help` tells what can be given")

    def actions(self) -> Sequence[argparse.Action]:
        """All that can be given, in the order of the help."""
        return tuple(self._actions)


class VerbParser(Parser):
    """Of one verb. It is filled when it is used, because that loads the verb."""

    def __init__(self, *, verb: str, with_command: bool, **options: Any) -> None:
        super().__init__(**options)
        self._verb = verb
        self._with_command = with_command
        self._is_filled = False
        self._is_mixing = False
        self._has_command = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - its overloads
        """An option may stand among words, which argparse alone refuses where some of the words can be left out."""
        self.fill()
        found, extras = super().parse_known_args(args, namespace)
        if self._is_mixing or self._has_command or all(word.startswith("-") for word in extras):
            return found, extras
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False

    def fill(self) -> None:
        if self._is_filled:
            return
        self._is_filled = True
        module = load(self._verb)
        self.description = (module.__doc__ or "").strip()
        self.usage = f"sandlot {module.USAGE}"
        module.add_arguments(self)
        if self._with_command and self._verb in TAKE_WORDS:
            self._has_command = True
            self.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the program and its arguments")
        # Given before the verb or after it; what is not given after it must not undo what was given before.
        suppress = argparse.SUPPRESS
        _add_global_options(self, json=suppress, debug=suppress, data_dir=suppress, url=suppress, wait=suppress)


class WholeParser(Parser):
    """`with_command`: the first word that is not an option begins the command; else no command stands here."""

    def __init__(self, *, with_command: bool) -> None:
        super().__init__(
            prog="sandlot",
            description="Private computers for agents: started in milliseconds, and walled in.",
            epilog="Exit codes: the command's own; 2 for a wrong request, 125 when the sandbox itself failed.",
            allow_abbrev=False,
        )
        self.add_argument("--version", action="version", version=f"sandlot {__version__}")
        _add_global_options(self, json=False, debug=False, data_dir=None, url=None, wait="3")
        verbs = self.add_subparsers(title="verbs", metavar="VERB", dest="verb", parser_class=VerbParser)
        self.verbs = {
            name: verbs.add_parser(name, help=line, verb=name, with_command=with_command, allow_abbrev=False)
            for name, line in VERBS.items()
        }


def make_parser(*, with_command: bool) -> WholeParser:
    """With all that every verb takes, for whoever writes about it."""
    parser = WholeParser(with_command=with_command)
    for verb in parser.verbs.values():
        verb.fill()
    return parser


def _add_global_options(parser: argparse.ArgumentParser, **defaults: object) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--data-dir",
        metavar="PATH",
        default=defaults["data_dir"],
        help="where sessions are kept (default: $SANDLOT_DATA_DIR, or /var/lib/sandlot, or without root "
        "~/.local/share/sandlot)",
    )
    group.add_argument(
        "--url", metavar="URL", default=defaults["url"], help="use the server there instead (default: $SANDLOT_URL)"
    )
    group.add_argument(
        "--json", action="store_true", default=defaults["json"], help="print one JSON document, errors too"
    )
    group.add_argument(
        "--wait",
        metavar="TIME",
        default=defaults["wait"],
        help="how long to wait for another engine on the same data directory (default: 3s)",
    )
    group.add_argument("--debug", action="store_true", default=defaults["debug"], help="show where an error came from")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Raises InvalidArgument; prints help or the version and raises SystemExit when asked for them."""
    head, command = list(argv), None
    if "--" in argv:
        # What stands before it is ours, what stands behind it the command's, whatever it looks like.
        at = head.index("--")
        head, command = head[:at], head[at + 1 :]
    parser = WholeParser(with_command=command is None)
    args = parser.parse_args(head)
    if args.verb is None:
        parser.print_help()
        raise SystemExit(EXIT_USAGE)
    if command is not None:
        if args.verb not in TAKE_COMMAND:
            raise InvalidArgument(f"{args.verb} takes no command", next_step="leave out `--` and what follows")
        args.command = command
    return args
