"""Make the ledger: every request that reached the root volume before ready, which process caused it, and how
to avoid it.
"""
