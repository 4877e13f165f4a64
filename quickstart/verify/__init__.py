"""The completeness ledger: every request that reached the root volume before ready, who made it, and how to avoid it."""
