"""The permissions that a user of `quickstart ami` needs, as policy documents of IAM."""

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
# To start a machine takes these, too. They cost more, and end what others may have started.
MACHINE_ACTIONS = (
    "ec2:DescribeInstances",
    "ec2:GetConsoleOutput",
    "ec2:RunInstances",
    "ec2:TerminateInstances",
)


def policy(*, machines: bool = False) -> Mapping[str, object]:
    """The smallest policy with which `ami create`, `list`, `show` and `delete` work; with ``machines``, also `ami run`,
    `ami cleanup` and `bench --backend ec2`.
    """
    actions = sorted((*ACTIONS, *(MACHINE_ACTIONS if machines else ())))
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}],
    }
