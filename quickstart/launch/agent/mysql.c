/*
 * Sends `show databases` as a client of MySQL and MariaDB does (MySQL's documentation: "Client/Server Protocol";
 * MariaDB's: "Clients & Utilities / Server Client Communication"). Every number is little-endian.
 */
#define _GNU_SOURCE
#include "mysql.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"

enum { PACKET_ROOM = 4096 }; /* handshakes have about 100 bytes, a row at most 4 * 64 and its length */
enum { HEADER = 4, LARGEST_PACKET = 1 << 24 };
enum { OK = 0x00, END = 0xfe, END_BELOW = 9 }; /* in a longer packet, 0xfe begins a row, or asks for another plugin */
enum { SHORT_MAX = 250 };                      /* the longest string whose length is one byte */
enum { COM_QUIT = 1, COM_QUERY = 3, UTF8MB4_GENERAL_CI = 45 };
enum { LONG_PASSWORD = 1, PROTOCOL_41 = 0x200, SECURE_CONNECTION = 0x8000, PLUGIN_AUTH = 0x80000 };
/* LONG_PASSWORD is not required: MariaDB's servers leave it out to show that they are not MySQL. */
enum { NEEDED = PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH };
static const char PLUGIN[] = "mysql_native_password";
static const char ASK[] = "show databases";
static const char ALWAYS[] = "information_schema";

/* One connection. `sequence` is the number of the next packet, ours or the server's; `packet` is the payload of the last one. */
struct session {
    int fd;
    int64_t limit;
    uint8_t sequence;
    size_t length;
    unsigned char packet[PACKET_ROOM];
};

static bool receive(const struct session *session, unsigned char *to, size_t wanted) {
    while (wanted > 0) {
        struct pollfd wait = {.fd = session->fd, .events = POLLIN};
        if (poll(&wait, 1, ms_until(session->limit)) <= 0) return false; /* no answer in time, or a lack of memory: the caller tries again */
        ssize_t got = recv(session->fd, to, wanted, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0 || ms_until(session->limit) == 0) return false;
        to += got;
        wanted -= (size_t)got;
    }
    return true;
}

static bool next_packet(struct session *session) {
    unsigned char header[HEADER];
    if (!receive(session, header, sizeof header)) return false;
    session->length = header[0] | (size_t)header[1] << 8 | (size_t)header[2] << 16;
    return header[3] == session->sequence++ && session->length > 0 && session->length <= sizeof session->packet &&
           receive(session, session->packet, session->length);
}

/* Sends at most 255 bytes, which fit into the buffer of a new socket. */
static bool send_packet(struct session *session, const void *payload, size_t length) {
    unsigned char packet[HEADER + UINT8_MAX] = {(unsigned char)length, 0, 0, session->sequence++};
    memcpy(packet + HEADER, payload, length);
    return send(session->fd, packet, HEADER + length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)(HEADER + length);
}

/* Protocol::HandshakeV10: 10, version and NUL, thread, 8 bytes of salt, 0, capabilities, character set, status, the rest of
 * the capabilities; the rest concerns passwords. */
static bool is_handshake(const struct session *session) {
    const unsigned char *end = memchr(session->packet, '\0', session->length);
    if (session->packet[0] != 10 || !end) return false;
    const unsigned char *at = end + 1 + 4 + 8 + 1;
    if (at + 2 + 1 + 2 + 2 > session->packet + session->length) return false;
    uint32_t able = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[5] << 16 | (uint32_t)at[6] << 24;
    return (able & NEEDED) == NEEDED;
}

/* Protocol::HandshakeResponse41: capabilities, largest packet, character set, 23 zeroes, account, answer, plugin. */
static bool send_account(struct session *session, const char *account) {
    unsigned char answer[32 + ACCOUNT_MAX + 1 + 1 + sizeof PLUGIN] = {0};
    const uint32_t words[] = {NEEDED | LONG_PASSWORD, LARGEST_PACKET};
    size_t name = strlen(account) + 1;
    for (size_t i = 0; i < 8; i++) answer[i] = (unsigned char)(words[i / 4] >> 8 * (i % 4));
    answer[8] = UTF8MB4_GENERAL_CI;
    memcpy(answer + 32, account, name);
    memcpy(answer + 32 + name + 1, PLUGIN, sizeof PLUGIN); /* after the answer's length, which is 0 without a password */
    return send_packet(session, answer, 32 + name + 1 + sizeof PLUGIN);
}

static bool log_in(struct session *session, const char *account) {
    if (!next_packet(session) || !is_handshake(session) || !send_account(session, account) || !next_packet(session)) return false;
    /* Protocol::AuthSwitchRequest: the account does not use the server's default plugin. */
    if (session->packet[0] == END && session->length > sizeof PLUGIN && memcmp(session->packet + 1, PLUGIN, sizeof PLUGIN) == 0 &&
        (!send_packet(session, "", 0) || !next_packet(session)))
        return false;
    return session->packet[0] == OK;
}

static bool is_end(const struct session *session) { return session->packet[0] == END && session->length < END_BELOW; }

/* A text result set of one column: the number of columns, the definition of the column, an end, rows, an end. */
static int read_rows(struct session *session) {
    static const char column[] = "\3def";
    bool found = false;
    if (!next_packet(session) || session->length != 1 || session->packet[0] != 1) return 0;
    if (!next_packet(session) || session->length < sizeof column || memcmp(session->packet, column, 4) != 0) return 0;
    if (!next_packet(session) || !is_end(session)) return 0;
    for (int rows = 0; next_packet(session); rows++) {
        if (is_end(session)) return found ? rows : 0;
        /* A row has one string after its length. A name has at most 64 characters. */
        if (session->packet[0] > SHORT_MAX || session->packet[0] != session->length - 1) return 0; /* also for an error packet */
        found = found || (session->length == sizeof ALWAYS && memcmp(session->packet + 1, ALWAYS, sizeof ALWAYS - 1) == 0);
    }
    return 0;
}

int list_databases(int fd, const char *account, int64_t limit) {
    struct session session = {.fd = fd, .limit = limit};
    char query[sizeof ASK] = {COM_QUERY};
    memcpy(query + 1, ASK, sizeof ASK - 1);
    if (!log_in(&session, account)) return 0;
    session.sequence = 0; /* every command begins at 0 */
    return send_packet(&session, query, sizeof query) ? read_rows(&session) : 0;
}

void end_session(int fd) {
    struct session session = {.fd = fd};
    const unsigned char quit = COM_QUIT;
    (void)send_packet(&session, &quit, 1); /* if this fails, the server notes an aborted connection */
}
