"""QuickStart: make a VM image application-ready in the least time, and leave it an ordinary image."""

__version__ = "0.2.0"
