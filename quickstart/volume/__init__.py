"""Storage models, and the volumes that serve an image by them."""
