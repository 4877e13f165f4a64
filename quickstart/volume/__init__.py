"""Read storage models, which describe the delays of a volume, and serve images as volumes with these delays."""
