"""Puts the guest program into the package; all else about the package is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
BUILT = HERE / "guest" / "build"
PACKAGED = HERE / "src" / "sandlot" / "_bin"
PROGRAMS = ("sandlot-keeper", "sandlot-attempt", "sandlot-preload.so", "sandlot-scout")

NO_COMPILER = (
    "no C compiler: the wheel is built without the guest program; this install can talk to servers but not run "
    "sessions; install gcc and libc6-dev and run `make guest`"
)


def build_guest() -> None:
    """Compile the guest program and copy it into the source package. A compiler that fails, fails the build."""
    if not shutil.which("make") or not (shutil.which("cc") or shutil.which("gcc")):
        print(NO_COMPILER, file=sys.stderr, flush=True)
        return
    # Flags of an outer make name its job server, which this one cannot reach.
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS"}}
    subprocess.run(["make", "-C", str(HERE / "guest")], check=True, env=environment)
    PACKAGED.mkdir(exist_ok=True)
    for name in PROGRAMS:
        # Replaced, not overwritten: the kernel refuses to write into a program that runs.
        fresh = PACKAGED / f"{name}.new"
        shutil.copy(BUILT / name, fresh)
        fresh.replace(PACKAGED / name)


class WithGuest(Distribution):
    """A package that holds the program is for one kind of machine, as if it had an extension module."""

    def has_ext_modules(self) -> bool:
        return (PACKAGED / PROGRAMS[0]).exists()


class BuildWithGuest(build_py):
    """Serves wheels and editable installs. Package data are looked for afterwards, so that a wheel has the program."""

    def run(self) -> None:
        build_guest()
        super().run()


class PlatformWheel(bdist_wheel):
    """The program needs a kind of machine but no kind of Python, and the wheel's tag says so."""

    def finalize_options(self) -> None:
        # The tag is settled here, before the build; hence the program is made here already.
        build_guest()
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


setup(distclass=WithGuest, cmdclass={"build_py": BuildWithGuest, "bdist_wheel": PlatformWheel})
