"""Several hosts, each a network namespace: joining, a wrong secret, a cable that is cut."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.jobs_on_hosts import first, other, wait_for_event
from tests.running import collect
from tests.virtual_hosts import VirtualHost

pytestmark = pytest.mark.timeout(600)


def test_a_host_that_is_cut_off_fences_itself_and_comes_back(
    hosts: list[VirtualHost], tmp_path: Path
) -> None:
    one, two = hosts
    options = ("--spares", "1", "--on-loss", "shrink")
    lead = first(one, tmp_path, *options, steps=260)
    joined = other(two, one, tmp_path, *options, steps=260)
    try:
        wait_for_event(tmp_path, "live", within=180)
        time.sleep(2)  # some steps in peace
        two.cut_off()
        wait_for_event(tmp_path, "live", within=60, count=2)
        two.plug_in()
        assert lead.wait(240) == 0
        assert joined.wait(30) == 0
    finally:
        two.plug_in()
        for process in (lead, joined):
            process.kill()
    found = collect(tmp_path, 0, "")
    # On a busy machine a rank may be slow enough to be swapped too; this is not about that.
    faults = [entry["fault"] for entry in found.summary["recoveries"]]
    assert [fault for fault in faults if fault != "slow"] == ["partition"] * 2
    assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
    sizes = [event["world_size"] for event in found.of_kind("live")]
    assert sizes[:2] == [4, 3]
    assert sizes[-1] == 4
    assert "workers fenced" in (tmp_path / f"{two.name}.log").read_text()


def test_a_wrong_secret_is_refused_and_logged(hosts: list[VirtualHost], tmp_path: Path) -> None:
    one, two = hosts
    lead = first(one, tmp_path, steps=5)
    try:
        wait_for_event(tmp_path, "agent_joined", within=60)
        stranger = other(two, one, tmp_path, steps=5, secret="b" * 64)
        assert stranger.wait(60) == 2
        wait_for_event(tmp_path, "refused", within=10)
        assert "secret" in (tmp_path / f"{two.name}.log").read_text()
    finally:
        lead.terminate()
        lead.wait(30)
