/*
 * What our C programs have agreed on with the Python that talks to them, each constant once. Every program finds this header beside
 * its own files (store/compiled.py). tests/unit/test_protocol.py holds the values of the Python side to these.
 */
#pragma once

/* The launch agent's channel (docs/internals/agent.md; launch/channel.py): the first word of each message, and the two limits. */
#define AGENT_VERSION 2
#define AGENT_HELLO "hello"
#define AGENT_BEACON "beacon"
#define AGENT_READY "ready"
#define AGENT_COUNTERS "counters"
#define AGENT_OUT "out"
#define AGENT_ERR "err"
#define AGENT_EXIT "exit"
#define AGENT_EXEC "exec"
#define AGENT_MESSAGE_MAX 16384
/* Instead of a port's name, and the beginning of each line of a message on the console. */
#define AGENT_CONSOLE "console"
#define AGENT_SPEAKS "quickstart-agent says "

/* The volume emulator's log (docs/users/storage.md; volume/emulator.py). The magic has 8 bytes without the NUL. */
#define VOLUME_LOG_MAGIC "QSVOL  1"
#define VOLUME_LOG_MAGIC_BYTES 8
#define VOLUME_RECORD_BYTES 64
#define VOLUME_INSTANCES_MAX 64

/* NBD (github.com/NetworkBlockDevice/nbd, doc/proto.md; volume/nbd.py). The longest payload is what the protocol allows without negotiation. */
#define NBD_LENGTH_MAX 33554432
#define NBD_MAGIC 0x4e42444d41474943
#define NBD_OPTION_MAGIC 0x49484156454f5054
#define NBD_OPTION_REPLY_MAGIC 0x3e889045565a9
#define NBD_REQUEST_MAGIC 0x25609513
#define NBD_REPLY_MAGIC 0x67446698
#define NBD_FIXED_NEWSTYLE 1
#define NBD_NO_ZEROES 2
#define NBD_OPT_GO 7
#define NBD_REP_ACK 1
#define NBD_REP_INFO 3
#define NBD_INFO_EXPORT 0
#define NBD_CMD_READ 0
#define NBD_CMD_WRITE 1
#define NBD_CMD_DISCONNECT 2
#define NBD_CMD_FLUSH 3
#define NBD_CMD_TRIM 4
#define NBD_CMD_WRITE_ZEROES 6

/* The description of a unit (docs/internals/starter.md; initramfs/description.py). */
#define UNIT_FIRST_LINE "quickstart-unit 1"

/* The checker's list of digests (docs/internals/integrity.md; initramfs/digests.py). The magic has 8 bytes without the NUL. */
#define DIGESTS_MAGIC "QSPARTB3"
#define DIGESTS_MAGIC_BYTES 8
#define DIGESTS_HEAD_BYTES 12
#define DIGESTS_RECORD_BYTES 32

/* Where the start set lies in the guest, and what of it is ours (initramfs/layout.py). */
#define FAST "/fast"
#define FAST_OURS "/fast/quickstart"
