"""The base of every record that is kept: frozen, named fields only, JSON in and out."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Facts(BaseModel):
    """A record that cannot change and knows all its fields.

    ``model_validate_json`` refuses what does not fit, ``model_dump_json`` writes it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
