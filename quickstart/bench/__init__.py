"""Run the bench: make the files from which each configuration boots, and do all runs of a matrix one after
the other.
"""
