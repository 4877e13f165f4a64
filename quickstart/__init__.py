"""QuickStart starts a VM and its application faster. The VM's image stays an ordinary Debian image."""

__version__ = "0.2.0"
