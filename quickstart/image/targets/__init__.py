"""The files for targets, that is, for platforms that boot an artefact without QEMU's option -kernel. Each target has
its own package.
"""
