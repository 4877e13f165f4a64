"""QuickStart: make a VM and its application start faster, and leave the image an ordinary one."""

__version__ = "0.2.0"
