"""Amazon EC2: make images of artefacts, and manage these images (docs/users/ec2.md)."""
