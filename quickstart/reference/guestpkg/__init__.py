"""The Debian package quickstart-guest. The package stays in a machine and notices when a packed file changes
(docs/users/never-stale.md).
"""
