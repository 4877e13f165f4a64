"""Trace a reference image. The image is booted under the tracers (strace and our scripts), the complete logs are copied
to the host, and the logs are parsed.
"""
