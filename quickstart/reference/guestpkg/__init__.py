"""The Debian package quickstart-guest. It stays in a machine and notices when a packed file changes
(docs/users/never-stale.md).
"""
