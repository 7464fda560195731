"""Several hosts, each a network namespace: joining, a wrong secret, a cable that is cut."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import BYTELM, KEEPSTEP, ROOT, collect, environment
from tests.virtual_hosts import VirtualHost, virtual_hosts, why_not

pytestmark = pytest.mark.timeout(600)
PORT = "29400"
SECRET = "a" * 64


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[VirtualHost]]:
    problem = why_not()
    if problem is not None:
        pytest.skip(f"several hosts on one machine: {problem}")
    with virtual_hosts(2) as made:
        yield made


def start(
    host: VirtualHost, folder: Path, *options: str, steps: int, secret: str = SECRET
) -> subprocess.Popen[str]:
    """Start the command on one host; what it says goes to a file."""
    log = open(folder / f"{host.name}.log", "w")  # noqa: SIM115 - closed with the process
    return subprocess.Popen(
        [*host.prefix, KEEPSTEP, "run", "--backend", "gloo", "--workers", "2", "--nnodes", "2",
         "--host", host.address, *options, BYTELM, "--steps", str(steps)],
        cwd=ROOT,
        env=environment(KEEPSTEP_SECRET=secret),
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def first(host: VirtualHost, folder: Path, *options: str, steps: int) -> subprocess.Popen[str]:
    files = ("--summary", str(folder / "summary.json"), "--events", str(folder / "events.jsonl"))
    return start(host, folder, "--port", PORT, *files, *options, steps=steps)


def other(
    host: VirtualHost, lead: VirtualHost, folder: Path, *options: str, steps: int, **more: str
) -> subprocess.Popen[str]:
    return start(host, folder, "--join", f"{lead.address}:{PORT}", *options, steps=steps, **more)


def wait_for_event(folder: Path, name: str, within: float, count: int = 1) -> None:
    path, deadline = folder / "events.jsonl", time.monotonic() + within
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        if sum(json.loads(line)["event"] == name for line in lines) >= count:
            return
        assert time.monotonic() < deadline, f"no {name} within {within} s"
        time.sleep(0.1)


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
