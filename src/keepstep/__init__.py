"""Keep every rank in step: through a bad GPU, a hang, or a bad release.

The API of a training script: ``join``, ``State``, ``Job`` and ``Sampler``. Importing it costs the
standard library and torch, nothing else.
"""

from keepstep.runtime.job import Job, join
from keepstep.runtime.sampler import Sampler
from keepstep.runtime.state import State, Stateful

__all__ = ["Job", "Sampler", "State", "Stateful", "join"]
