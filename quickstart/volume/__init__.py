"""Storage models, and volumes that serve an image with the delays of a model."""
