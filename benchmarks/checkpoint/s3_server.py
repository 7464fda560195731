"""An S3 server on the loopback interface (moto's), with a log of what it was asked for.

    python -m benchmarks.checkpoint.s3_server LOG

A process of its own, so that its processor time is not the client's. It prints its port, ends when
its standard input does, and writes a line of JSON for each request into LOG.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HOST = "127.0.0.1"

# What a client needs to be told; botocore reads these, and so does everything above it.
ACCESS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "NO_PROXY": HOST,
}


class Request(NamedTuple):
    """One request, as the server saw it."""

    method: str
    path: str
    query: str
    range: str | None  # the header Range, such as bytes=0-99
    condition: str | None  # the header If-Match
    status: int
    sent: int  # bytes of content in the answer


class Server(NamedTuple):
    """A running server: its process, its address, and the file with its log."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def requests(self) -> list[Request]:
        """Return what was asked for since the last call of ``forget``."""
        return [Request(**json.loads(line)) for line in self.log.read_text().splitlines()]

    def forget(self) -> None:
        """Begin the log anew."""
        self.log.write_text("")

    def variables(self) -> dict[str, str]:
        """Return the environment of a client."""
        return {**ACCESS, "AWS_ENDPOINT_URL": self.address}


@contextlib.contextmanager
def s3_server(log: Path) -> Iterator[Server]:
    """Start a server, and stop it."""
    log.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.checkpoint.s3_server", str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        cwd=Path(__file__).parent.parent.parent,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield Server(process, f"http://{HOST}:{port}", log)
        finally:
            process.stdin.close()


def _logged(application: Any, log: Path) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """Return the same WSGI application, writing a line for each request."""
    writing = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        seen: list[int] = []

        def begin(status: str, headers: Any, *rest: Any) -> Any:
            seen.append(int(status.split()[0]))
            return start_response(status, headers, *rest)

        content = [bytes(part) for part in application(environ, begin)]
        request = Request(
            method=environ["REQUEST_METHOD"],
            path=environ["PATH_INFO"],
            query=environ["QUERY_STRING"],
            range=environ.get("HTTP_RANGE"),
            condition=environ.get("HTTP_IF_MATCH"),
            status=seen[0],
            sent=sum(map(len, content)),
        )
        with writing, log.open("a") as file:
            file.write(json.dumps(request._asdict()) + "\n")
        return content

    return answer


def main() -> None:
    """Serve until standard input ends."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, as with the real S3

    logged = _logged(create_backend_app("s3"), Path(sys.argv[1]))
    server = make_server(HOST, 0, logged, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
