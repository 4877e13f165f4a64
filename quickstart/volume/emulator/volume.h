/* What the parts of the volume emulator share. The model, the arguments and the log: docs/users/storage.md. */
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
    int64_t not_before; /* its service does not start before that; NEVER: not at all */
    int64_t ready;      /* when its service ends */
    int64_t due;        /* when the model has it answered; 0 until that is known */
    uint32_t length, touched, in_flight, error;
    uint32_t client; /* the connection it came by */
    struct instance *from;
    uint16_t type, flags;
    size_t reply_length, reply_sent;
    unsigned char reply[]; /* its header; then the data read, or those to write */
};

struct list {
    struct request *first, **end;
};
void append(struct list *list, struct request *request);
struct request *take_first(struct list *list);

/* model.c: when a request is answered. Computes only; it never looks at a clock. */
struct model {
    uint64_t read_latency_ns, write_latency_ns;
    uint64_t bandwidth_bytes_s; /* 0: without limit */
    uint64_t queue_depth, granule_bytes, first_touch_ns;
    uint64_t seek_ns; /* 0: there is no head to move */
};
bool model_open(const struct model *model, uint64_t size_bytes);
bool is_modelled(const struct request *request); /* the others cost no time, but may be held back by not_before */
void model_arrive(struct request *request);      /* after model_answered(request->arrival) has nothing more to say */
struct request *model_answered(int64_t now);     /* one that is due by now, in order of due; NULL: none */
int64_t model_next(void);                        /* when to ask again; NEVER when nothing is on its way */
/* One of that instance's that is not answered yet, to be forgotten; NULL: none is left, and others may take its places. */
struct request *model_drop(const struct instance *from, int64_t now);

/* disk.c: the image, and what each instance has written over it. The three return 0 or an errno. */
struct overlay {
    int fd;
    unsigned char *owned;
};                                                         /* owned: of each block, whether it is the overlay's */
const char *disk_open(int image);                          /* NULL, or what failed */
const char *overlay_open(struct overlay *overlay, int fd); /* an empty file, or one of before */
uint64_t disk_size(void);
uint64_t overlay_length(void);
int disk_read(const struct overlay *overlay, void *to, uint64_t offset, size_t length);
int disk_write(const struct overlay *overlay, const void *from, uint64_t offset, size_t length);
int disk_zero(const struct overlay *overlay, uint64_t offset, uint64_t length);

/* handshake.c: one step with what has come from a client that was just accepted. */
struct handshake {
    int64_t until;
    uint64_t flags;
    bool flagged;
};
enum step { WAIT, AGAIN, DONE, FAILED }; /* more bytes are wanted; go on; the transmission phase is next; close it */
enum step handshake_begin(struct handshake *state, int fd);
enum step handshake_step(struct handshake *state, int fd, const unsigned char *in, size_t there, size_t *used);
uint64_t big_endian(const unsigned char *from, int bytes);
void put_big_endian(unsigned char *to, int bytes, uint64_t value);

/* Who the volume serves: a socket, an overlay, and one client after the other. */
struct instance {
    int listener, fd; /* fd: -1 while there is no client */
    uint16_t number;  /* from 1; 0 where the volume has a single socket */
    uint32_t client;
    struct overlay overlay;
    struct handshake handshake;
    bool greeted, leaving;
    unsigned char in[65536];
    size_t in_start, in_end;
    struct request *incoming; /* a write whose payload is not all there yet */
    size_t incoming_got;
    struct list answers; /* due, to be sent */
    uint32_t in_flight;
    size_t buffered;
};

/* client.c: the transmission phase. False when the client is to be closed. */
bool client_tend(struct instance *at);          /* takes requests, gives answers */
bool client_receive(struct instance *at);       /* one read from the socket */
void client_drop(struct instance *at);          /* forgets its requests */
short client_events(const struct instance *at); /* what to wait for */
bool client_pending(const struct instance *at); /* whether there is a request that need not be waited for */

/* fault.c */
void fault_parse(char *text);
void fault_apply(struct request *request);

/* jail.c: nothing more is opened from then on, and no file grows beyond that. */
void jail_shut(uint64_t largest_file);

/* volume.c */
int64_t now(void);
void note(const struct request *request, int64_t done);
_Noreturn void die(const char *what, const char *object);
_Noreturn void end(int status);
void report(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t number(const char *text, uint64_t low, uint64_t high);

#endif
