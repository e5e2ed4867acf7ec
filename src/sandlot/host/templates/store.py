"""Finds a template by name and makes the built-in one on first need."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from sandlot.host.templates.builtin import ROOT, TemplateBuildError, build, fingerprint
from sandlot.model import BUILTIN, Template, TemplateNotFound, Unavailable


class TemplateStore:
    def __init__(self, data: Path, progress: Callable[[int], None] | None = None) -> None:
        self._folder = data / "templates"
        self._progress = progress
        self._building = asyncio.Lock()
        self._builtin: Template | None = None

    async def find(self, name: str) -> Template:
        """Raises TemplateNotFound, Unavailable when the built-in one cannot be made."""
        if name != BUILTIN:
            raise TemplateNotFound(f"there is no template {name}", next_step=f"use {BUILTIN}", template=name)
        if self._builtin is None:
            async with self._building:
                # One look per engine: a machine that is upgraded meanwhile is seen by the next one.
                self._builtin = self._builtin or await asyncio.to_thread(self._make_builtin)
        return self._builtin

    def _make_builtin(self) -> Template:
        mark = fingerprint()
        try:
            made = build(self._folder / f"{BUILTIN}-{mark}", progress=self._progress)
        except TemplateBuildError as error:
            raise Unavailable(error.message, next_step=error.next_step) from error
        return Template(BUILTIN, made.fingerprint, str(made.path / ROOT))
