"""A rehearsal: the cells of a plan, the drills, the receipts, the report, in this order."""
