"""Where a program finds its host, when it is not to have an engine of its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

URL, API_KEY = "SANDLOT_URL", "SANDLOT_API_KEY"


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    api_key: str | None = field(repr=False)


def load_remote(
    url: str | None = None, api_key: str | None = None, environment: Mapping[str, str] | None = None
) -> Remote | None:
    """None: nowhere else. What is wrong with a URL is told by whoever uses it. The key of the environment is told
    to the server of the environment, and to no other."""
    environment = os.environ if environment is None else environment
    known = environment.get(URL, "")
    if not (url or known):
        return None
    if api_key is None and (not url or not known or url == known):
        api_key = environment.get(API_KEY) or None
    return Remote(url or known, api_key)


def environment_key() -> str:
    """Empty: there is none."""
    return os.environ.get(API_KEY, "")
