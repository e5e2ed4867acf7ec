"""Print a script that lets a shell complete verbs, options and session ids.

For this shell: `source <(sandlot completion bash)`, also with zsh; or `sandlot completion fish | source`. For every new
one, put that line into the file that your shell reads at its start."""

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sandlot.cli.context import Context
from sandlot.cli.parser import Parser, make_parser

USAGE = "completion bash|zsh|fish"


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    about: str
    takes_value: bool


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    about: str
    options: tuple[Option, ...]
    words: tuple[str, ...]  # what stands behind it, one after the other: id, path, or words to choose from
    goes_on: bool  # the last of them can be repeated


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_SCRIPTS), help="bash, zsh or fish")


async def run(context: Context) -> int:
    script = _SCRIPTS[context.args.shell](read_verbs())
    if context.screen.as_json:
        context.screen.json({"shell": context.args.shell, "script": script})
    else:
        context.screen.line(script)
    return 0


def read_verbs() -> list[Verb]:
    """What the parser itself knows, so that a script never tells of something else. The whole has an empty name."""
    parser = make_parser(with_command=True)
    verbs = [_read(name, verb) for name, verb in parser.verbs.items()]
    top = Verb("", "", _read("", parser).options, (" ".join(parser.verbs),), False)
    return [top, *verbs]


def _read(name: str, parser: Parser) -> Verb:
    actions = [action for action in parser.actions() if action.help != argparse.SUPPRESS]
    options = [
        Option(tuple(action.option_strings), (action.help or "").replace("%%", "%"), action.nargs != 0)
        for action in actions
        if action.option_strings
    ]
    words = [action for action in actions if not action.option_strings]
    goes_on = any(action.nargs in ("+", "*") for action in words)
    return Verb(name, parser.description or "", tuple(options), tuple(map(_kind, words)), goes_on)


def _kind(action: argparse.Action) -> str:
    if action.choices:
        return " ".join(map(str, action.choices))
    return {"ID": "id", "SRC": "path", "DST": "path"}.get(str(action.metavar), "")


def _valued(verbs: list[Verb]) -> list[str]:
    return sorted({name for verb in verbs for option in verb.options if option.takes_value for name in option.names})


def _flags(verb: Verb) -> str:
    return " ".join(name for option in verb.options for name in option.names)


def _first_line(text: str) -> str:
    return text.split(". ")[0].split("\n")[0].rstrip(".")


# ---- bash --------------------------------------------------------------------------------------------------------

_BASH = r"""# bash completion for sandlot. Load it with: source <(sandlot completion bash)
_sandlot_ids() {
    "${COMP_WORDS[0]}" ${1:+--data-dir "${1/#\~/$HOME}"} ls --json --limit 50 --wait 0 2>/dev/null |
        grep -o '"session_id": *"[^"]*"' | cut -d '"' -f 4
}

_sandlot() {
    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local valued=' @VALUED@ '
    local verb='' data='' flags='' kinds=() kind='' more='' word='' i place=0
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == -- ]]; then
            return
        elif [[ $valued == *" $word "* ]]; then
            ((i++))
            [[ ${COMP_WORDS[i]} == '=' ]] && ((i++))
            [[ $word == --data-dir ]] && data=${COMP_WORDS[i]}
        elif [[ $word == [=:] ]]; then
            ((i++)) # bash takes words apart here; the rest of this one follows
        elif [[ $word != -* && -z $verb ]]; then
            verb=$word
        elif [[ $word != -* ]]; then
            ((place++))
        fi
    done
    if [[ $before == --data-dir || $before == '=' ]]; then
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -d -- "${cur#=}")
        return
    elif [[ $valued == *" $before "* ]]; then
        return
    fi
    case $verb in
@VERBS@
        *) return ;;
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$cur"))
        return
    fi
    kind=${kinds[place]}
    if [[ $more && $place -ge ${#kinds[@]} ]]; then
        kind=${kinds[${#kinds[@]} - 1]}
    fi
    if [[ $kind == id ]]; then
        COMPREPLY=($(compgen -W "$(_sandlot_ids "$data")" -- "$cur"))
    elif [[ $kind != path ]]; then
        COMPREPLY=($(compgen -W "$kind" -- "$cur"))
    elif [[ ${COMP_LINE:0:COMP_POINT} == *:"${cur#:}" ]]; then
        compopt +o default +o bashdefault # a path in a session, where we cannot look
    else
        COMPREPLY=($(compgen -S : -W "$(_sandlot_ids "$data")" -- "$cur"))
        if ((${#COMPREPLY[@]})); then
            compopt -o nospace
            mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$cur")
        fi
    fi
}

complete -o bashdefault -o default -F _sandlot sandlot"""


def _bash(verbs: list[Verb]) -> str:
    rows: list[str] = []
    for verb in verbs:
        kinds = " ".join(f"'{kind}'" for kind in verb.words)
        more = " more=1" if verb.goes_on else ""
        rows.append(f"        '{verb.name}') flags='{_flags(verb)}' kinds=({kinds}){more} ;;")
    return _BASH.replace("@VALUED@", " ".join(_valued(verbs))).replace("@VERBS@", "\n".join(rows))


# ---- zsh ---------------------------------------------------------------------------------------------------------

_ZSH = r"""#compdef sandlot
# zsh completion for sandlot. Load it with: source <(sandlot completion zsh)
_sandlot_ids() {
    local -a at
    [[ -n $1 ]] && at=(--data-dir ${~1})
    command $words[1] $at ls --json --limit 50 --wait 0 2>/dev/null |
        grep -o '"session_id": *"[^"]*"' | cut -d '"' -f 4
}

_sandlot() {
    local verb='' data='' word='' kind='' more=''
    local -a valued flags kinds found
    local -i i place=1
    valued=(@VALUED@)
    for ((i = 2; i < CURRENT; i++)); do
        word=$words[i]
        if [[ $word == -- ]]; then
            _files
            return
        elif (( ${valued[(Ie)$word]} )); then
            (( i++ ))
            [[ $word == --data-dir ]] && data=$words[i]
        elif [[ $word != -* && -z $verb ]]; then
            verb=$word
        elif [[ $word != -* ]]; then
            (( place++ ))
        fi
    done
    if [[ $words[CURRENT-1] == --data-dir ]]; then
        _files -/
        return
    elif (( ${valued[(Ie)$words[CURRENT-1]]} )); then
        _files
        return
    fi
    case $verb in
@VERBS@
        (*) _files; return ;;
    esac
    if [[ $words[CURRENT] == -* ]]; then
        _describe -o option flags
        return
    fi
    kind=$kinds[place]
    if [[ -n $more ]] && (( place > $#kinds )); then
        kind=$kinds[-1]
    fi
    case $kind in
        (id) found=(${(f)"$(_sandlot_ids $data)"}); compadd -a found ;;
        (path) found=(${(f)"$(_sandlot_ids $data)"}); compadd -S : -a found; _files ;;
        (verbs) found=(@NAMES@); _describe verb found ;;
        ('') _files ;;
        (*) found=(${=kind}); compadd -a found ;;
    esac
}

if [[ $funcstack[1] == _sandlot ]]; then
    _sandlot "$@"
else
    compdef _sandlot sandlot
fi"""


def _zsh(verbs: list[Verb]) -> str:
    rows: list[str] = []
    for verb in verbs:
        kinds = " ".join(f"'{kind}'" for kind in (verb.words if verb.name else ("verbs",)))
        rows += [f"        ('{verb.name}')", f"            kinds=({kinds})"]
        rows += ["            more=1"] if verb.goes_on else []
        flags = [shlex.quote(f"{name}:{option.about}") for option in verb.options for name in option.names]
        rows += [
            "            flags=(",
            *(f"                {flag}" for flag in flags),
            "            )",
            "            ;;",
        ]
    names = " ".join(shlex.quote(f"{verb.name}:{_first_line(verb.about)}") for verb in verbs if verb.name)
    script = _ZSH.replace("@VALUED@", " ".join(_valued(verbs))).replace("@VERBS@", "\n".join(rows))
    return script.replace("@NAMES@", names)


# ---- fish --------------------------------------------------------------------------------------------------------

_FISH = r"""# fish completion for sandlot. Load it with: sandlot completion fish | source
function __sandlot_ids
    set -l words (commandline -opc)
    set -l at
    for i in (seq 2 (count $words))
        if test "$words[$i]" = --data-dir; and test $i -lt (count $words)
            set at --data-dir $words[(math $i + 1)]
        end
    end
    command $words[1] $at ls --json --limit 50 --wait 0 2>/dev/null | string match -rag '"session_id": *"([^"]*)"'
end

complete -c sandlot -f
@LINES@"""


def _fish(verbs: list[Verb]) -> str:
    lines: list[str] = []
    for verb in verbs:
        when = f"'__fish_seen_subcommand_from {verb.name}'" if verb.name else "__fish_use_subcommand"
        if verb.name:
            about = _fish_quoted(_first_line(verb.about))
            lines.append(f"complete -c sandlot -n __fish_use_subcommand -a {verb.name} -d {about}")
        for option in verb.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = " -r" if option.takes_value else ""
            lines.append(f"complete -c sandlot -n {when} {names}{value} -d {_fish_quoted(option.about)}")
        for kind in dict.fromkeys(verb.words if verb.name else ()):
            if kind == "path":
                lines.append(f"complete -c sandlot -n {when} -F -a '(__sandlot_ids | string replace -r \\$ :)'")
            elif kind == "id":
                lines.append(f"complete -c sandlot -n {when} -a '(__sandlot_ids)'")
            elif kind:
                lines.append(f"complete -c sandlot -n {when} -a {_fish_quoted(kind)}")
    return _FISH.replace("@LINES@", "\n".join(lines))


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: Mapping[str, Callable[[list[Verb]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
