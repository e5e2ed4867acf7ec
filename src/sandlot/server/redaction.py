"""The one place where secrets are taken out of what is logged. Its text may be hostile: no pattern here goes back."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, cast

HIDDEN = "[hidden]"
_WORDS = (
    *("password", "passwd", "passphrase", "secret", "token", "apikey", "privatekey", "credential", "authorization"),
    *("cookie", "sessionkey", "accesskey"),
)
_SEPARATORS = str.maketrans("", "", "-_.")
_NAME = re.compile(
    r"""(?P<name>(?<![a-z0-9_.\-])[a-z0-9_.\-]++)["']?\s*+[=:]\s*+(?:(?:bearer|basic|digest|token)\s++)?""",
    re.IGNORECASE,
)
_VALUE = re.compile(rf"""{re.escape(HIDDEN)}|"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|[^\s,;&"'}}\])]++""", re.DOTALL)
_PREFIXES = (
    *("sk", "pk", "rk", "ghp", "gho", "ghs", "ghu", "github_pat", "glpat", "hf", "sl", "slt"),
    *(f"xox{kind}" for kind in "abprs"),
)
# Without one of these, in small letters, no pattern finds anything, as in most of what is told.
_MARKS = (
    "=",
    ":",
    "bearer",
    "basic",
    "-begin",
    "akia",
    "asia",
    "eyj",
    *(one + end for one in _PREFIXES for end in "_-"),
)
_MARK = re.compile("|".join(re.escape(mark) for mark in _MARKS))
_PATTERNS = (
    (re.compile(r"(?P<keep>\b(?:bearer|basic)\s++)[a-z0-9._~+/=\-]{6,}+", re.IGNORECASE), rf"\g<keep>{HIDDEN}"),
    # What is in front of the host of an address.
    (re.compile(r"(?P<keep>://)[^\s/@:]*+:[^\s/@]*+@"), rf"\g<keep>{HIDDEN}@"),
    # What is known by its form.
    (re.compile(r"-----BEGIN [A-Z ]*+(?<=PRIVATE KEY)-----.*?(?:-----END [A-Z ]*+-----|\Z)", re.DOTALL), HIDDEN),
    (
        re.compile(rf"(?<![a-zA-Z0-9_\-])(?:{'|'.join(_PREFIXES)})[_\-][a-zA-Z0-9_\-]{{16,}}+"),
        HIDDEN,
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"(?<![a-zA-Z0-9_\-])eyJ[a-zA-Z0-9_\-]{8,}+\.[a-zA-Z0-9_\-]{8,}+\.[a-zA-Z0-9_\-]*+"), HIDDEN),
)


def redact(text: str) -> str:
    """The same, with `[hidden]` where a secret stood. Rather too much than too little."""
    if not _MARK.search(text.lower()):
        return text
    text = "".join(_without_values(text))
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _without_values(text: str) -> Iterator[str]:
    """A value that is no secret may have one in it, so only the name of it is passed over."""
    told = at = 0
    while match := _NAME.search(text, at):
        at = match.end()
        if is_secret(match["name"]) and (value := _VALUE.match(text, at)):
            yield text[told:at] + HIDDEN
            told = at = value.end()
    yield text[told:]


def is_secret(name: str) -> bool:
    """Whether what has this name is not to be told."""
    plain = name.lower().translate(_SEPARATORS)
    return any(word in plain for word in _WORDS)


def redact_document(value: Any, known: Collection[str] = ()) -> Any:
    """The same for all that JSON can say. `known`: texts that are secrets, or may be, and have no form."""
    if isinstance(value, str):
        for secret in known:
            value = value.replace(secret, HIDDEN)
        return redact(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value).items()
        return {
            name: HIDDEN if is_secret(name) and isinstance(one, str) and one else redact_document(one, known)
            for name, one in pairs
        }
    if isinstance(value, list | tuple):
        return [redact_document(one, known) for one in cast("Iterable[Any]", value)]
    return value
