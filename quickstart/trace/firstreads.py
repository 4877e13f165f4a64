"""Find out which parts of the root volume a guest reads after ready. The reads count from the moment of ready until the
profile's first requests have been answered.

This module has the words for the kernel's command line that make the kernel trace these reads. The module also has the
parser for the log that the script tracers/reads-all prints. The log has only the positions on the volume and the times
of the reads, so the data that was read does not leave the guest. The log also has reads that bypass the page cache.
"""

from __future__ import annotations

import re

from quickstart.errors import TraceError
from quickstart.trace.whole import whole

# Only requests that reach the volume's driver. A full buffer keeps its oldest entries; the prefetch is smaller then.
TRACE_WORDS = (
    "trace_buf_size=4M",
    "trace_clock=boot",
    "trace_options=nooverwrite",
    "trace_event=block:block_rq_issue",
)
# The buffer of a guest with two CPUs holds some 100,000.
_MOST_READS = 1 << 17
_SECTOR_BYTES = 512
_READ = re.compile(r"([0-9]{1,9})\.([0-9]{6}) ([0-9]{1,15}) ([0-9]{1,9})")


def parse_reads(text: str, from_ns: int) -> tuple[tuple[int, int], ...]:
    """The reads of the root volume from the uptime ``from_ns`` on, in the order of the log. Each read is a tuple
    (offset, length) in bytes. Equal reads are in the result only once. Raises TraceError for a log that is incomplete
    or damaged, or has implausibly many lines.
    """
    text = whole("the volume's reads", text)
    # This is checked before there is an object for each line. Here and below, only this end of a line counts.
    if text.count("\n") > _MOST_READS:
        raise TraceError(
            f"the log of the volume's reads has more than {_MOST_READS} lines", hint="build again"
        )
    found: dict[tuple[int, int], None] = {}
    for line in text.removesuffix("\n").split("\n") if text else ():
        match = _READ.fullmatch(line)
        if match is None:
            raise TraceError("the log of the volume's reads is damaged", hint="build again")
        seconds, micros, sector, sectors = map(int, match.groups())
        if seconds * 10**9 + micros * 1000 >= from_ns and sectors:
            found[(sector * _SECTOR_BYTES, sectors * _SECTOR_BYTES)] = None
    return tuple(found)
