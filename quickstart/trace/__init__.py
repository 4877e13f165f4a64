"""Trace a reference image: boot it under the tracers, copy the complete logs to the host, and parse the logs."""
