"""Processes of the launcher that are started again, and ports that are kept for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from keepstep.runtime import kept_process
from keepstep.runtime.kept_process import InfrastructureError, KeptProcess
from keepstep.runtime.ports import is_free, listen, reserve

HOST = "127.0.0.1"


def test_one_that_does_not_stay_up_is_an_error() -> None:
    ended: list[int] = []

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    kept = KeptProcess("helper", start, 60.0, lambda process, _: ended.append(process.returncode))
    with pytest.raises(InfrastructureError, match="the helper does not stay up"):
        asyncio.run(kept.keep(lambda: False))
    assert ended == [3] * 5


def test_one_that_is_killed_from_outside_again_and_again_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_process, "LONGEST_PAUSE", 0.001)
    ended: list[int] = []

    def start() -> subprocess.Popen[bytes]:
        if len(ended) == 12:
            return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
        return subprocess.Popen(["sh", "-c", "kill -KILL $$"])

    kept = KeptProcess("helper", start, 60.0, lambda process, _: ended.append(process.returncode))

    async def keep_until_it_lives() -> None:
        keeper = asyncio.create_task(kept.keep(lambda: False))
        while len(ended) < 12:
            await asyncio.sleep(0.01)
        assert not keeper.done()
        keeper.cancel()

    asyncio.run(keep_until_it_lives())
    assert set(ended) == {-signal.SIGKILL}
    kept.end()


def test_one_that_ends_is_started_again_until_that_is_over() -> None:
    ended: list[int] = []

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE)

    kept = KeptProcess("helper", start, 0.0, lambda process, _: ended.append(process.pid))

    async def kill_ten_times() -> None:
        keeper = asyncio.create_task(kept.keep(lambda: len(ended) >= 5))  # a crash is no end
        while len(ended) < 10:
            pid = kept.process.pid
            kept.process.kill()
            while kept.process.pid == pid:
                await asyncio.sleep(0.001)
        assert kept.process.stdin is not None
        kept.process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(keeper, 0.2)
        assert keeper.cancelled()  # it did not return, and nothing was started

    asyncio.run(kill_ten_times())
    assert kept.process.wait() == 0
    assert len(ended) == 10
    kept.end()  # may follow the process's own end


@pytest.mark.parametrize("turns", range(6))
def test_nobody_waits_for_one_that_ends_when_it_is_no_longer_kept(turns: int) -> None:
    kept = KeptProcess("helper", lambda: subprocess.Popen(["sleep", "600"]), 0.0, lambda *_: None)

    async def end() -> None:
        keeper = asyncio.create_task(kept.keep(lambda: True))
        await asyncio.sleep(0.05)
        kept.process.kill()
        os.waitid(os.P_PID, kept.process.pid, os.WEXITED | os.WNOWAIT)  # the loop has not seen it
        for _ in range(turns):
            await asyncio.sleep(0)
        keeper.cancel()
        await asyncio.wait({keeper}, timeout=5)
        assert keeper.done()

    asyncio.run(end())
    kept.end()


def test_one_that_is_stopped_is_replaced_and_one_that_goes_on_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_process, "LOOK", 0.02)
    ended: list[float] = []

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"])

    kept = KeptProcess("helper", start, 0.0, lambda _, stopped: ended.append(stopped))

    async def stop_it(seconds: float) -> None:
        keeper = asyncio.create_task(kept.keep(lambda: False))
        kept.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        kept.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.1)
        keeper.cancel()

    first = kept.process.pid
    asyncio.run(stop_it(kept_process.STOPPED / 2))
    assert (kept.process.pid, ended) == (first, [])
    asyncio.run(stop_it(kept_process.STOPPED * 1.5))
    assert kept.process.pid != first
    assert [seconds >= kept_process.STOPPED for seconds in ended] == [True]
    kept.end()


def test_a_reserved_port_is_kept_from_others_and_can_be_listened_on_again_and_again() -> None:
    with reserve(HOST, 0) as kept:
        port = int(kept.getsockname()[1])
        with socket.socket() as client:
            assert client.connect_ex((HOST, port)) != 0  # nobody answers for it
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind((HOST, port))
        for _ in range(2):
            with listen(HOST, port) as door:
                assert door.getsockname()[1] == port
                assert not is_free(HOST, port)
        assert is_free(HOST, port)


def test_a_port_on_which_somebody_listens_cannot_be_reserved() -> None:
    with listen(HOST, 0) as door, pytest.raises(OSError, match="in use"):
        reserve(HOST, int(door.getsockname()[1]))
