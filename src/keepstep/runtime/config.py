"""What an agent tells a worker process, through one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from keepstep.runtime.inject import Injection

ENVIRONMENT = "KEEPSTEP_WORKER"


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
