"""Make the ledger. For every request that reached the root volume before ready, the ledger says which process caused
the request, and how to avoid the request.
"""
