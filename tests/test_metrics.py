"""The metrics: text that Prometheus can read, served without ever holding up the agent."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keepstep.runtime import metrics
from keepstep.runtime.board import Board, Condition, Row
from keepstep.runtime.metrics import CONTENT_TYPE, MAX_CLIENTS, MetricsServer, render

Labels = tuple[tuple[str, str], ...]

BOARD = Board(
    host="127.0.0.1",
    generation=2,
    world_size=3,
    committed=41,
    steps=100,
    median_step=0.5,
    spares_ready=1,
    recoveries=(("kill", "replace", 1), ("hang", "shrink", 2)),
    exits=(("fence", 2), ('odd"\\', 1)),
    coordinator_up=False,
    lease_left=2.25,
    rows=(
        Row(
            wid=0,
            rank=0,
            host="127.0.0.1",
            pid=10,
            condition=Condition.STEP,
            committed=41,
            step_seconds=0.5,
            busy_seconds=0.25,
            age=0.125,
        ),
        Row(wid=1, rank=1, host="127.0.0.1", pid=11, condition=Condition.STEP, committed=40),
        Row(
            wid=2,
            rank=2,
            host="10.0.0.2",
            pid=12,
            condition=Condition.STEP,
            committed=40,
            local=False,
        ),
        Row(wid=3, rank=None, host="127.0.0.1", pid=13, condition=Condition.SPARE),
    ),
)


def parse(text: str) -> dict[str, dict[Labels, float]]:
    """Read the text format strictly: HELP and TYPE before the samples of a metric, once."""
    found: dict[str, dict[Labels, float]] = {}
    helped, kinds = set(), {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helped
            assert len(line.split(" ", 3)[3]) > 10
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in helped
            kinds[name] = kind
            found[name] = {}
        else:
            match = re.fullmatch(r"([a-z_:]+)(?:\{(.*)\})? (\S+)", line)
            assert match is not None, line
            name, inner, value = match[1], match[2] or "", float(match[3])
            assert name == list(found)[-1], "samples follow their TYPE"
            labels = re.findall(r'([a-z_]+)="((?:\\.|[^"\\])*)"(?:,|$)', inner)
            found[name][tuple((key, _plain(text)) for key, text in labels)] = value
    assert helped == set(kinds)
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
    return found


def _plain(text: str) -> str:
    return text.replace(r"\"", '"').replace(r"\n", "\n").replace(r"\\", "\\")


def test_what_is_written_can_be_read_back() -> None:
    found = parse(render(BOARD))
    assert all(re.fullmatch(r"keepstep_[a-z_]+", name) for name in found)
    assert found["keepstep_generation"] == {(): 2}
    assert found["keepstep_world_size"] == {(): 3}
    assert found["keepstep_step"] == {(): 41}
    assert found["keepstep_spares_ready"] == {(): 1}
    assert found["keepstep_coordinator_up"] == {(): 0}
    assert found["keepstep_lease_seconds_left"] == {(): 2.25}
    assert found["keepstep_recoveries_total"] == {
        (("fault", "kill"), ("action", "replace")): 1,
        (("fault", "hang"), ("action", "shrink")): 2,
    }
    assert found["keepstep_worker_exits_total"] == {
        (("fault", "fence"),): 2,
        (("fault", 'odd"\\'),): 1,
    }


def test_ranks_of_other_hosts_are_left_to_their_own_agents() -> None:
    found = parse(render(BOARD))
    assert found["keepstep_rank_step"] == {(("rank", "0"),): 41, (("rank", "1"),): 40}
    assert found["keepstep_rank_age_seconds"][("rank", "0"),] == 0.125
    assert found["keepstep_step_seconds"][("rank", "0"),] == 0.5


def test_busy_time_that_is_not_known_is_not_claimed() -> None:
    assert parse(render(BOARD))["keepstep_step_busy_seconds"] == {(("rank", "0"),): 0.25}


# --- the server -----------------------------------------------------------------------------------


def serve(
    check: Callable[[int], Awaitable[Any]], text: Callable[[], str] = lambda: render(BOARD)
) -> Any:
    """Run ``check`` with the port of a server."""

    async def go() -> Any:
        server = await MetricsServer.serving("127.0.0.1", 0, text)
        try:
            port = int(server.url.removeprefix("http://127.0.0.1:").removesuffix("/metrics"))
            return await check(port)
        finally:
            server.close()

    return asyncio.run(go())


async def ask(port: int, request: bytes) -> tuple[str, dict[str, str], str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    status, *fields = head.split("\r\n")
    return status, dict(field.split(": ", 1) for field in fields), body


GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_scrape() -> None:
    status, fields, body = serve(lambda port: ask(port, GET))
    assert status == "HTTP/1.1 200 OK"
    assert fields["Content-Type"] == CONTENT_TYPE
    assert int(fields["Content-Length"]) == len(body)
    assert "keepstep_step" in parse(body)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", "200"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
    ],
)
def test_other_requests(request_: bytes, status: str) -> None:
    line, fields, body = serve(lambda port: ask(port, request_))
    assert line.split(" ")[1] == status
    assert (
        body == "" if request_.startswith(b"HEAD") else len(body) == int(fields["Content-Length"])
    )


@pytest.mark.parametrize("noise", [b"\r\n\r\n", b"x" * 20000, b"\x16\x03\x01 \x00\r\n\r\n"])
def test_noise_is_hung_up_on(noise: bytes) -> None:
    async def check(port: int) -> str:
        with contextlib.suppress(ConnectionError):  # closed before it had read all of it
            await ask(port, noise)
        return (await ask(port, GET))[0]

    assert serve(check) == "HTTP/1.1 200 OK"


def test_silent_clients_are_dropped_and_do_not_keep_others_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE", 0.2)

    async def check(port: int) -> tuple[str, str]:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CLIENTS)]
        await asyncio.sleep(0.05)
        crowded = (await ask(port, GET))[0]
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        return crowded, (await ask(port, GET))[0]

    crowded, later = serve(check)
    assert crowded == "HTTP/1.1 503 Service Unavailable"
    assert later == "HTTP/1.1 200 OK"


def test_a_flood_of_scrapes_makes_the_text_once() -> None:
    made = []

    def text() -> str:
        made.append(time.monotonic())
        return "# nothing\n"

    async def check(port: int) -> None:
        await asyncio.gather(*(ask(port, GET) for _ in range(10)))

    serve(check, text)
    assert len(made) == 1


def test_the_text_of_a_large_host_is_made_in_no_time() -> None:
    rows = tuple(
        Row(wid=n, rank=n, host="h", pid=n, condition=Condition.STEP, age=0.1) for n in range(64)
    )
    board = Board(**{name: getattr(BOARD, name) for name in BOARD.__slots__} | {"rows": rows})
    best = min(_timed(board) for _ in range(20))
    assert best < 0.02


def _timed(board: Board) -> float:
    began = time.perf_counter()
    render(board)
    return time.perf_counter() - began
