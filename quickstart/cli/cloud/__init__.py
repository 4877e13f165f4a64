"""The verbs for Amazon EC2: `quickstart ami` and `quickstart ec2`."""
