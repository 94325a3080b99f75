"""From what a start touched to what the next one fetches first: record, resolve, match, merge, plan. Policy is pure."""
