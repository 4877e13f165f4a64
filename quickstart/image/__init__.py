"""Images: writers for root disks and artefacts; what is written is decided by pure plans."""
