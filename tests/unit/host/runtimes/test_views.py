"""What is told of a machine with limits."""

from sandlot.host.runtimes.views import views
from sandlot.model import Resources, limits

CPUINFO = "".join(f"processor\t: {n}\nmodel name\t: some\n\n" for n in range(12))


def test_nothing_is_told_without_a_limit() -> None:
    assert views(Resources(pids=3), (), CPUINFO, 0) == {}


def test_memory_and_swap() -> None:
    told = views(Resources(memory_bytes=limits.GIB, swap_bytes=limits.MIB), (), CPUINFO, 512 * 1024)
    lines = dict(line.split(":") for line in told["/proc/meminfo"].splitlines())
    assert lines["MemTotal"].split() == lines["MemAvailable"].split() == ["1048576", "kB"]
    assert lines["SwapTotal"].split() == ["512", "kB"]  # the machine has no more
    assert list(told) == ["/proc/meminfo"]


def test_processors() -> None:
    told = views(Resources(cpus=1.5), (1, 11), CPUINFO, 0)
    assert told["/sys/devices/system/cpu/online"] == "1,11\n"
    assert told["/proc/cpuinfo"].count("model name") == 2
    assert "processor\t: 11\n" in told["/proc/cpuinfo"]
    assert "/proc/meminfo" not in told
