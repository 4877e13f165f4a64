"""Make the reference image of a profile: an ordinary root file system with its kernel. QuickStart boots it,
traces it and ships it.
"""
