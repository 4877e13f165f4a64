/* Shared by the parts of the volume emulator. docs/users/storage.md describes the model, the arguments and the log. */
#ifndef VOLUME_H
#define VOLUME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

#define NEVER INT64_MAX
#define SECOND INT64_C(1000000000)
enum { LENGTH_MAX = NBD_LENGTH_MAX };
enum { REQUEST_HEADER = 28, REPLY_HEADER = 16 };
enum { INSTANCES_MAX = VOLUME_INSTANCES_MAX };

enum command {
    READ = NBD_CMD_READ,
    WRITE = NBD_CMD_WRITE,
    DISCONNECT = NBD_CMD_DISCONNECT,
    FLUSH = NBD_CMD_FLUSH,
    TRIM = NBD_CMD_TRIM,
    WRITE_ZEROES = NBD_CMD_WRITE_ZEROES
};
enum { FLAG_FUA = 1, FLAG_NO_HOLE = 2 }; /* NBD_CMD_FLAG_* */

/* All instants are CLOCK_MONOTONIC in ns. */
struct request {
    struct request *next;
    uint64_t sequence, cookie, offset;
    int64_t arrival;
    int64_t not_before; /* its service does not start before this; NEVER: it does not start at all */
    int64_t ready;      /* when its service ends */
    int64_t due;        /* when its answer is due by the model; 0 until that is known */
    uint32_t length, touched, in_flight, error;
    uint32_t client; /* the number of its connection */
    struct instance *from;
    uint16_t type, flags;
    size_t reply_length, reply_sent;
    unsigned char reply[]; /* the reply's header, then the data that were read or are to be written */
};

struct list {
    struct request *first, **end;
};
void append(struct list *list, struct request *request);
struct request *take_first(struct list *list);

/* model.c: when a request is answered. It only computes, and never reads a clock. */
struct model {
    uint64_t read_latency_ns, write_latency_ns;
    uint64_t bandwidth_bytes_s; /* 0: no limit */
    uint64_t queue_depth, granule_bytes, first_touch_ns;
    uint64_t seek_ns; /* 0: there is no head that moves */
};
bool model_open(const struct model *model, uint64_t size_bytes);
bool is_modelled(const struct request *request); /* other requests cost no time, but not_before may hold them back */
void model_arrive(struct request *request);      /* call it after model_answered(request->arrival) has returned NULL */
struct request *model_answered(int64_t now);     /* a request that is due by now, in order of due; NULL: none */
int64_t model_next(void);                        /* when to ask again; NEVER while no request is in service or on the link */
/* An unanswered request of that instance, which the caller forgets. NULL: none is left, and other requests may take their places. */
struct request *model_drop(const struct instance *from, int64_t now);

/* disk.c: the image, and the overlay with the writes of each instance. disk_read, disk_write and disk_zero return 0 or an errno. */
struct overlay {
    int fd;
    unsigned char *owned;
};                                                         /* owned: for each block, 1 when it is in the overlay */
const char *disk_open(int image);                          /* NULL, or what failed */
const char *overlay_open(struct overlay *overlay, int fd); /* an empty file, or an overlay of an earlier run */
uint64_t disk_size(void);
uint64_t overlay_length(void);
int disk_read(const struct overlay *overlay, void *to, uint64_t offset, size_t length);
int disk_write(const struct overlay *overlay, const void *from, uint64_t offset, size_t length);
int disk_zero(const struct overlay *overlay, uint64_t offset, uint64_t length);

/* handshake.c: one step of the handshake, with the bytes that the client has sent so far. */
struct handshake {
    int64_t until;
    uint64_t flags;
    bool flagged;
};
enum step { WAIT, AGAIN, DONE, FAILED }; /* wait for more bytes; call again; the transmission phase is next; close the connection */
enum step handshake_begin(struct handshake *state, int fd);
enum step handshake_step(struct handshake *state, int fd, const unsigned char *in, size_t there, size_t *used);
uint64_t big_endian(const unsigned char *from, int bytes);
void put_big_endian(unsigned char *to, int bytes, uint64_t value);

/* An instance has a socket and an overlay, and one client at a time. */
struct instance {
    int listener, fd; /* fd: -1 while there is no client */
    uint16_t number;  /* from 1; 0 where the volume has a single socket */
    uint32_t client;
    struct overlay overlay;
    struct handshake handshake;
    bool greeted, leaving;
    unsigned char in[65536];
    size_t in_start, in_end;
    struct request *incoming; /* a write whose payload has not arrived completely */
    size_t incoming_got;
    struct list answers; /* these are due and have to be sent */
    uint32_t in_flight;
    size_t buffered;
};

/* client.c: the transmission phase. These return false when the connection has to be closed. */
bool client_tend(struct instance *at);          /* takes requests and sends answers */
bool client_receive(struct instance *at);       /* reads from the socket once */
void client_drop(struct instance *at);          /* forgets the client's requests */
short client_events(const struct instance *at); /* the events to poll for */
bool client_pending(const struct instance *at); /* whether a request can be taken without waiting */

/* fault.c */
void fault_parse(char *text);
void fault_apply(struct request *request);

/* jail.c: afterwards, no file can be opened, and none can grow beyond this length. */
void jail_shut(uint64_t largest_file);

/* volume.c */
int64_t now(void);
void note(const struct request *request, int64_t done);
_Noreturn void die(const char *what, const char *object);
_Noreturn void end(int status);
void report(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t number(const char *text, uint64_t low, uint64_t high);

#endif
