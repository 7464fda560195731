"""Keep a running job in step: workers, agents, coordinator."""
