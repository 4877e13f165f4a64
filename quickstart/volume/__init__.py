"""Read storage models, and serve images as volumes with the delays of a model."""
