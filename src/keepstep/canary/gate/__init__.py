"""Hard gates, one family a file: no statistics, no tolerance that the plan does not state."""
