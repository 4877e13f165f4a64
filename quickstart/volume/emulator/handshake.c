/* The handshake of the NBD protocol, fixed newstyle (github.com/NetworkBlockDevice/nbd, doc/proto.md). */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>

#include "volume.h"

enum { PATIENCE_S = 10, OPTION_HEADER = 16, OPTION_MAX = 8192, EXPORT_ZEROES = 124 };
/* HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES */
enum { TRANSMISSION_FLAGS = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 };
enum option { EXPORT_NAME = 1, ABORT = 2, INFO = 6, GO = NBD_OPT_GO };
static const uint32_t UNSUPPORTED = 0x80000001, INVALID = 0x80000003, UNKNOWN = 0x80000006;

uint64_t big_endian(const unsigned char *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | from[i];
    return value;
}

void put_big_endian(unsigned char *to, int bytes, uint64_t value) {
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) to[i] = (unsigned char)value;
}

/* Our messages fit into the buffer of any socket. A client that lets the buffer fill up does not read. */
static bool say(int client, const unsigned char *text, size_t length) { return send(client, text, length, MSG_NOSIGNAL) == (ssize_t)length; }

static bool reply(int client, enum option option, uint32_t kind, const unsigned char *data, size_t length) {
    unsigned char text[20 + 16];
    put_big_endian(text, 8, NBD_OPTION_REPLY_MAGIC);
    put_big_endian(text + 8, 4, option);
    put_big_endian(text + 12, 4, kind);
    put_big_endian(text + 16, 4, length);
    if (length > 0) memcpy(text + 20, data, length);
    return say(client, text, 20 + length);
}

/* NBD_OPT_INFO and NBD_OPT_GO: the length and text of the export's name, then the kinds of information that the client asks for. */
static uint32_t judge(const unsigned char *data, size_t length) {
    if (length < 6 || big_endian(data, 4) > length - 6) return INVALID;
    size_t name = (size_t)big_endian(data, 4);
    if (length != 6 + name + 2 * (size_t)big_endian(data + 4 + name, 2)) return INVALID;
    return name == 0 ? NBD_REP_ACK : UNKNOWN;
}

enum step handshake_begin(struct handshake *state, int fd) {
    unsigned char text[18];
    *state = (struct handshake){.until = now() + PATIENCE_S * SECOND};
    put_big_endian(text, 8, NBD_MAGIC);
    put_big_endian(text + 8, 8, NBD_OPTION_MAGIC);
    put_big_endian(text + 16, 2, NBD_FIXED_NEWSTYLE | NBD_NO_ZEROES);
    return say(fd, text, sizeof text) ? WAIT : FAILED;
}

static enum step answer_option(const struct handshake *state, int fd, enum option option, const unsigned char *data, size_t length) {
    unsigned char text[12 + EXPORT_ZEROES] = {0};
    put_big_endian(text, 2, NBD_INFO_EXPORT);
    put_big_endian(text + 2, 8, disk_size());
    put_big_endian(text + 10, 2, TRANSMISSION_FLAGS);
    if (option == EXPORT_NAME) /* the protocol has no error reply for this option */
        return length == 0 && say(fd, text + 2, state->flags & NBD_NO_ZEROES ? 10 : 10 + EXPORT_ZEROES) ? DONE : FAILED;
    uint32_t verdict = option == ABORT ? NBD_REP_ACK : option == GO || option == INFO ? judge(data, length) : UNSUPPORTED;
    if (verdict == NBD_REP_ACK && option != ABORT && !reply(fd, option, NBD_REP_INFO, text, 12)) return FAILED;
    if (!reply(fd, option, verdict, NULL, 0) || option == ABORT) return FAILED;
    return verdict == NBD_REP_ACK && option == GO ? DONE : AGAIN;
}

enum step handshake_step(struct handshake *state, int fd, const unsigned char *in, size_t there, size_t *used) {
    *used = 0;
    if (!state->flagged) {
        if (there < 4) return WAIT;
        state->flags = big_endian(in, 4);
        state->flagged = true;
        *used = 4;
        return state->flags & ~(uint64_t)(NBD_FIXED_NEWSTYLE | NBD_NO_ZEROES) ? FAILED : AGAIN;
    }
    if (there < OPTION_HEADER) return WAIT;
    size_t length = (size_t)big_endian(in + 12, 4);
    if (big_endian(in, 8) != NBD_OPTION_MAGIC || length > OPTION_MAX) return FAILED;
    if (there - OPTION_HEADER < length) return WAIT;
    *used = OPTION_HEADER + length;
    return answer_option(state, fd, (enum option)big_endian(in + 8, 4), in + OPTION_HEADER, length);
}
