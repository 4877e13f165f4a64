"""Find out what is on a disk that somebody else has made: its partitions, file systems, boot loader and operating
system (`quickstart inspect`).

The appliance, a small guest of ours, reads the disk and prints records (`launch/appliance/`). The modules of this
package compute all facts about the disk from these records, without side effects.
"""
