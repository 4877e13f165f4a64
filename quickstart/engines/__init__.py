"""Ways in which a machine becomes ready, each a sequence of stages."""
