"""The completeness ledger: every request that reached the root volume before ready, who asked, and what would avoid it."""
