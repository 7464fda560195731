"""``keepstep receipt key``: one's own public key, for those who verify."""

from __future__ import annotations

import json

from keepstep.cli.receipt_answer import JsonOption, answered, say
from keepstep.exit_codes import ExitCode
from keepstep.receipt.keys import default_key, public_text, trusted_folder, trusted_keys


@answered
def key(as_json: JsonOption = False) -> ExitCode:
    """Print the public key that receipts are signed with here; make it when there is none."""
    own = default_key()
    others = sorted(trusted_keys().keys() - {own.id})
    if as_json:
        body = {
            "id": own.id,
            "public_key": public_text(own.public),
            "trusted": others,
            "trusted_folder": str(trusted_folder()),
        }
        print(json.dumps(body, indent=2))
        return ExitCode.PASS
    say(
        [
            *public_text(own.public).splitlines(),
            f"id: {own.id}",
            f"trusted besides: {', '.join(each[:16] for each in others) or 'none'}",
            f"to trust another one: its public key as a file NAME.pub in {trusted_folder()}",
        ]
    )
    return ExitCode.PASS
