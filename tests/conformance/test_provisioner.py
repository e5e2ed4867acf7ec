"""Every provisioner keeps the promises of provisioners."""

import sys
from pathlib import Path

import pytest

from sandlot.conformance import PROVISIONER_CHECKS, Outcome, Verdict, conform_provisioner, is_conforming
from sandlot.fakes.provisioner import IMAGE, FakeCloud
from sandlot.model import InstanceConfig, InstanceFilter, Market, ProvisionerCapabilities
from sandlot.provision.local import LocalImage, LocalProvisioner

# A program that serves its data directory.
SERVES = LocalImage((sys.executable, "-m", "http.server", "-b", "{host}", "-d", "{data}", "{port}"))
CONFIG = InstanceConfig(IMAGE)
SPECIAL = {
    "types": InstanceConfig(IMAGE, instance_type="large"),
    "zones": InstanceConfig(IMAGE, zone="north"),
    "spot": InstanceConfig(IMAGE, market=Market.SPOT, price_max=0.1),
    "disk": InstanceConfig(IMAGE, disk_bytes=20 << 30),
    "lifetime": InstanceConfig(IMAGE, lifetime_s=600.0),
}


def wrong(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(one.check, one.detail) for one in outcomes if not one.is_good]


@pytest.mark.parametrize("able", [True, False])
async def test_the_fake_conforms(able: bool) -> None:
    cloud = FakeCloud() if able else FakeCloud(ProvisionerCapabilities(instances_max=4))
    special = SPECIAL if able else {}
    outcomes = [one async for one in conform_provisioner(cloud.provisioner, CONFIG, special=special)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert sum(one.verdict is Verdict.SKIPPED for one in outcomes) == (1 if able else 4)
    assert cloud.found(InstanceFilter()) == []


@pytest.mark.timeout(300)
async def test_local_instances_conform(tmp_path: Path) -> None:
    def make() -> LocalProvisioner:
        return LocalProvisioner(tmp_path / "instances", {"web": SERVES}, instances_max=5)

    outcomes = [one async for one in conform_provisioner(make, InstanceConfig("web"))]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert list(await make().list(InstanceFilter())) == []


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in PROVISIONER_CHECKS)
    assert len({check.name for check in PROVISIONER_CHECKS}) == len(PROVISIONER_CHECKS)
