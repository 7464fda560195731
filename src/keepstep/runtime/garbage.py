"""Python's garbage collection, held back while a job is not in step.

A full collection looks at every object of the process: 0.15 s where torch is loaded and a model was
made, with the interpreter lock held. In the middle of a recovery all ranks would wait for it.
"""

from __future__ import annotations

import gc


class Collection:
    """Automatic collection of this process.

    One that the script has switched off before the first generation stays off.
    """

    def __init__(self) -> None:
        """Leave it as it is."""
        self._is_held = False

    def hold(self) -> None:
        """Collect nothing until ``release``. May be called twice."""
        if gc.isenabled():
            gc.disable()
            self._is_held = True

    def release(self) -> None:
        """Go on with it."""
        if self._is_held:
            gc.enable()
            self._is_held = False
