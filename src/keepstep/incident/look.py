"""What all pages of keepstep share: colours, letters, and the policy that nothing foreign runs."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def look() -> str:
    """Return the style that every page begins with, light and dark."""
    return Path(__file__).with_name("look.css").read_text()


def policy_hash(text: str) -> str:
    """Return what a page's policy names a style or script by, so that no other one is taken."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
