"""Find out what a stranger's disk is: partitions, file systems, boot loader, system (`quickstart inspect`).

Everything here is computed from the records of the appliance (`launch/appliance/`), without side effects.
"""
