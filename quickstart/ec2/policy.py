"""The permissions that a user of `quickstart ami` needs, as a policy document of IAM."""

from __future__ import annotations

from collections.abc import Mapping

ACTIONS = (
    "ebs:StartSnapshot",
    "ebs:PutSnapshotBlock",
    "ebs:CompleteSnapshot",
    "ebs:ListSnapshotBlocks",
    "ebs:GetSnapshotBlock",
    "ec2:CreateTags",
    "ec2:DeleteSnapshot",
    "ec2:DeregisterImage",
    "ec2:DescribeImages",
    "ec2:DescribeSnapshots",
    "ec2:RegisterImage",
)


def policy() -> Mapping[str, object]:
    """The smallest policy with which `ami create`, `list`, `show` and `delete` work."""
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": list(ACTIONS), "Resource": "*"}],
    }
