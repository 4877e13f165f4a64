"""Make the reference image of a profile: an ordinary root file system with its kernel. QuickStart boots this
image to trace it, and ships it as the root disk.
"""
