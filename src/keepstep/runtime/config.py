"""What an agent tells a worker process, through one environment variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from keepstep.runtime.inject import Injection

ENVIRONMENT = "KEEPSTEP_WORKER"
TRANSPORT = "KEEPSTEP_TRANSPORT"
TRANSPORTS = ("auto", "tcp", "nixl")


def transport_asked(environment: Mapping[str, str]) -> str:
    """Return how replicated state moves: ``tcp``, or ``nixl`` where a run asks for it.

    ``auto``, the default, is TCP: on one host it was faster at every size from 1 to 256 MiB, with
    one donor and with two (benchmarks/README.md), and it has nothing to prepare.

    Raises:
        ValueError: another value.
    """
    asked = environment.get(TRANSPORT, "auto")
    if asked not in TRANSPORTS:
        raise ValueError(f"{TRANSPORT}={asked}: wanted one of {', '.join(TRANSPORTS)}")
    return "tcp" if asked == "auto" else asked


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig:
    """What the agent tells a worker through the environment."""

    wid: int
    backend: str
    world_size: int
    store_host: str
    store_port: int
    host: str
    vault: str
    progress: str
    link: int
    secret: str
    injections: tuple[Injection, ...]
    testifies: bool = False  # leaves dump and stacks in the vault when it is asked

    def to_json(self) -> str:
        """Return the text for the environment variable."""
        body = {name: getattr(self, name) for name in self.__slots__}
        plan = [
            {name: getattr(item, name) for name in Injection.__slots__} for item in self.injections
        ]
        return json.dumps({**body, "injections": plan})

    @classmethod
    def from_environment(cls) -> WorkerConfig | None:
        """Return the configuration, None in a process that no agent started."""
        text = os.environ.get(ENVIRONMENT)
        if text is None:
            return None
        body = json.loads(text)
        plan = tuple(Injection(**item) for item in body.pop("injections"))
        return cls(**body, injections=plan)
