"""The appliance: a small guest of ours that reads a stranger's disk (docs/adr/0026-appliance.md).

The kernel of the appliance comes from the base image in the store, and the initramfs has programs of this base image.
The appliance executes no program of the stranger's disk.
"""
