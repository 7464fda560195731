"""Events that only an agent knows of: its contact with the coordinator, the incidents it wrote."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AgentEvents:
    """Where the events of a host go, under the name and address of its agent."""

    agent: str
    host: str
    take: Callable[[dict[str, Any]], None]

    def tell(self, event: str, **facts: Any) -> None:
        """Tell an event that happens now."""
        self.take(
            {
                "time": round(time.time(), 4),
                "event": event,
                "agent": self.agent,
                "host": self.host,
                **facts,
            }
        )
