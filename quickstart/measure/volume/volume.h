/* What the parts of the volume emulator share. The model, the arguments and the log: docs/storage.md. */
#ifndef VOLUME_H
#define VOLUME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEVER INT64_MAX
#define SECOND INT64_C(1000000000)
enum { LENGTH_MAX = 32 << 20 };  /* the longest payload; what the protocol promises without negotiation */
enum { REQUEST_HEADER = 28, REPLY_HEADER = 16 };

enum command { READ, WRITE, DISCONNECT, FLUSH, TRIM, WRITE_ZEROES = 6 };  /* NBD_CMD_* */
enum { FLAG_FUA = 1, FLAG_NO_HOLE = 2 };  /* NBD_CMD_FLAG_* */

/* All instants are CLOCK_MONOTONIC in ns. */
struct request {
    struct request *next;
    uint64_t sequence, cookie, offset;
    int64_t arrival;
    int64_t not_before;  /* its service does not start before that; NEVER: not at all */
    int64_t ready;  /* when its service ends */
    int64_t due;  /* when the model has it answered; 0 until that is known */
    uint32_t length, touched, client, in_flight, error;
    uint16_t type, flags;
    size_t reply_length, reply_sent;
    unsigned char reply[];  /* its header; then the data read, or those to write */
};

struct list { struct request *first, **end; };
void append(struct list *list, struct request *request);
struct request *take_first(struct list *list);

/* model.c: when a request is answered. Computes only; it never looks at a clock. */
struct model {
    uint64_t read_latency_ns, write_latency_ns;
    uint64_t bandwidth_bytes_s;  /* 0: without limit */
    uint64_t queue_depth, granule_bytes, first_touch_ns;
    uint64_t seek_ns;  /* 0: there is no head to move */
};
bool model_open(const struct model *model, uint64_t size_bytes);
bool is_modelled(const struct request *request);  /* the others cost no time, but may be held back by not_before */
void model_arrive(struct request *request);  /* after model_answered(request->arrival) has nothing more to say */
struct request *model_answered(int64_t now);  /* one that is due by now, in order of due; NULL: none */
int64_t model_next(void);  /* when to ask again; NEVER when nothing is on its way */
struct request *model_drop(void);  /* one that is not answered yet, to be forgotten; NULL: none is left */

/* disk.c: the image with what was written over it. The three return 0 or an errno. */
const char *disk_open(const char *image, const char *overlay, const char *scratch);  /* NULL, or what failed */
uint64_t disk_size(void);
int disk_read(void *to, uint64_t offset, size_t length);
int disk_write(const void *from, uint64_t offset, size_t length);
int disk_zero(uint64_t offset, uint64_t length);

/* handshake.c: true when the client is in the transmission phase, false when it is to be closed. */
bool handshake(int client, uint64_t size_bytes);
uint64_t big_endian(const unsigned char *from, int bytes);
void put_big_endian(unsigned char *to, int bytes, uint64_t value);

/* volume.c. Waits for events on fd until an instant at most; what poll() saw. Handles signals, and may so end us. */
short wait_for(int fd, short events, int64_t until);
int64_t now(void);

#endif
