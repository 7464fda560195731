"""Run NVRx's CollectiveAnalyzer on a folder of dumps and print its answer as one line of JSON.

A script for the interpreter that has ``nvidia-resiliency-ext``; see ``peers.py``.
"""

from __future__ import annotations

import json
import sys

from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import (  # type: ignore[import-not-found]
    CollectiveAnalyzer,
)

arguments = {"fr_path": sys.argv[1], "pattern": "_dump_*"}
result = CollectiveAnalyzer(arguments).run_sync(arguments)
print(json.dumps(result[0]["hanging_ranks"]))
