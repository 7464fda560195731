"""Prometheus metrics of one host, served by its agent at ``http://HOST:PORT/metrics``.

The text is made from what the agent has in memory and kept for a moment, so that neither a slow
client nor a flood of scrapes takes the agent's time from its workers.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from keepstep.runtime.agent import Agent
from keepstep.runtime.board import Board, look

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH = 0.25  # seconds for which a text is given to whoever asks
MAX_CLIENTS = 16  # at the same time
MAX_REQUEST = 8192  # bytes
PATIENCE = 5.0  # seconds for a client to ask and to take the answer

Sample = tuple[dict[str, str | int], float]


def render(board: Board) -> str:
    """Return the metrics in Prometheus' text format. ``rank`` labels name ranks of this host."""
    return "".join(_blocks(board))


def _blocks(board: Board) -> Iterator[str]:
    own = [row for row in board.rows if row.local and row.rank is not None]
    yield _metric(
        "keepstep_generation",
        "gauge",
        "Number of the present generation; every change of members is a new one.",
        [({}, board.generation)],
    )
    yield _metric(
        "keepstep_world_size", "gauge", "Ranks of the present generation.", [({}, board.world_size)]
    )
    yield _metric(
        "keepstep_step",
        "gauge",
        "Steps committed by the most advanced rank that this host knows of.",
        [({}, board.committed)],
    )
    yield _metric(
        "keepstep_rank_step",
        "gauge",
        "Steps committed by a rank of this host.",
        [({"rank": row.rank or 0}, row.committed) for row in own],
    )
    yield _metric(
        "keepstep_rank_age_seconds",
        "gauge",
        "Time since a rank of this host last made progress.",
        [({"rank": row.rank or 0}, row.age) for row in own],
    )
    yield _metric(
        "keepstep_step_seconds",
        "gauge",
        "Duration of the last committed step of a rank of this host.",
        [({"rank": row.rank or 0}, row.step_seconds) for row in own],
    )
    yield _metric(
        "keepstep_step_busy_seconds",
        "gauge",
        "The part of the last step that a rank spent outside collectives, not waiting for others.",
        [({"rank": row.rank or 0}, row.busy_seconds) for row in own if row.busy_seconds > 0],
    )
    yield _metric(
        "keepstep_spares_ready",
        "gauge",
        "Warm spares that could take a rank now.",
        [({}, board.spares_ready)],
    )
    yield _metric(
        "keepstep_recoveries_total",
        "counter",
        "Faults after which the job is in step again.",
        [({"fault": f, "action": a}, count) for f, a, count in board.recoveries],
    )
    yield _metric(
        "keepstep_worker_exits_total",
        "counter",
        "Worker processes of this host that ended, by cause.",
        [({"fault": fault}, count) for fault, count in board.exits],
    )
    yield _metric(
        "keepstep_coordinator_up",
        "gauge",
        "1 while this host's agent is in contact with the coordinator.",
        [({}, int(board.coordinator_up))],
    )
    yield _metric(
        "keepstep_lease_seconds_left",
        "gauge",
        "Time for which this host's workers may go on without news of the coordinator.",
        [({}, board.lease_left)],
    )


def _metric(name: str, kind: str, text: str, samples: Sequence[Sample]) -> str:
    lines = [f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        lines.append(f"{name}{{{inner}}} {value:.10g}\n" if inner else f"{name} {value:.10g}\n")
    return "".join(lines)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@dataclass(slots=True)
class MetricsServer:
    """Answers GET /metrics; made by ``start``."""

    url: str
    _text: Callable[[], str]
    _server: asyncio.Server | None = None
    _clients: int = 0
    _made: tuple[float, bytes] = field(default=(0.0, b""))

    @classmethod
    async def start(cls, host: str, port: int, agent: Agent) -> MetricsServer:
        """Listen; port 0 takes any free one.

        Raises:
            OSError: ``port`` cannot be listened on.
        """
        return await cls.serving(host, port, lambda: render(look(agent)))

    @classmethod
    async def serving(cls, host: str, port: int, text: Callable[[], str]) -> MetricsServer:
        """Listen and answer with what ``text`` returns."""
        found = cls("", text)
        server = await asyncio.start_server(found._serve, host, port, limit=MAX_REQUEST)
        found._server = server
        bound = server.sockets[0].getsockname()[1]
        found.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}/metrics"
        return found

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            broken = (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError)
            with contextlib.suppress(*broken):
                async with asyncio.timeout(PATIENCE):
                    await self._answer(reader, writer)
        except asyncio.CancelledError:
            pass  # the loop ends; asyncio 3.11 would print a traceback for every open connection
        finally:
            self._clients -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = request.split(b"\r\n", 1)[0].split(b" ", 2)
        if self._clients > MAX_CLIENTS:
            writer.write(_response("503 Service Unavailable", b"too many clients\n"))
        elif path.split(b"?")[0] != b"/metrics":
            writer.write(_response("404 Not Found", b"the metrics are at /metrics\n"))
        elif method not in (b"GET", b"HEAD"):
            writer.write(_response("405 Method Not Allowed", b"GET /metrics\n"))
        else:
            body = self._fresh()
            writer.write(_response("200 OK", body, with_body=method == b"GET"))
        await writer.drain()

    def _fresh(self) -> bytes:
        now = time.monotonic()
        if not self._made[1] or now - self._made[0] > FRESH:
            self._made = (now, self._text().encode())
        return self._made[1]


def _response(status: str, body: bytes, *, with_body: bool = True) -> bytes:
    kind = CONTENT_TYPE if status.startswith("200") else "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
