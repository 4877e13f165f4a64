"""An emulator of Amazon EC2 and of the EBS direct APIs on this host, over HTTP (docs/users/ec2-emulator.md). It refuses
what EC2 refuses, as far as Amazon documents it.
"""
