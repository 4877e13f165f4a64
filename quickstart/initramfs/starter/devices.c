/* DevicePolicy= and DeviceAllow=: attaches a BPF program to the unit's cgroup, as systemd does (systemd.resource-control(5)). */
#include "starter.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { ANY = -1, TYPE_BITS = 0xffff, ACCESS_SHIFT = 16 };

/* Registers: r1 is the context, then scratch; r2 type, r3 access, r4 major, r5 minor; r0 is the result. */
static struct bpf_insn *program;
static uint32_t count;
/* The number of rules. */
static size_t allowed;

static void emit(uint8_t code, uint8_t to, uint8_t from, int16_t offset, int32_t value) {
    program = must(realloc(program, (count + 1) * sizeof *program));
    program[count++] = (struct bpf_insn){.code = code, .dst_reg = (unsigned)to & 0xfu, .src_reg = (unsigned)from & 0xfu, .off = offset, .imm = value};
}

static void emit_load(uint8_t to, size_t offset) { emit(BPF_LDX | BPF_MEM | BPF_W, to, 1, (int16_t)offset, 0); }

static void emit_return(int32_t value) {
    emit(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, value);
    emit(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
}

static void begin(void) {
    emit_load(2, offsetof(struct bpf_cgroup_dev_ctx, access_type));
    emit(BPF_ALU | BPF_AND | BPF_K, 2, 0, 0, TYPE_BITS);
    emit_load(3, offsetof(struct bpf_cgroup_dev_ctx, access_type));
    emit(BPF_ALU | BPF_RSH | BPF_K, 3, 0, 0, ACCESS_SHIFT);
    emit_load(4, offsetof(struct bpf_cgroup_dev_ctx, major));
    emit_load(5, offsetof(struct bpf_cgroup_dev_ctx, minor));
}

/* The rule allows an access when all of it is in `access`, a word of the letters `rwm`. ANY stands for all numbers. */
static void allow(char type, int major_number, int minor_number, const char *access) {
    int32_t bits = (strchr(access, 'r') ? BPF_DEVCG_ACC_READ : 0) | (strchr(access, 'w') ? BPF_DEVCG_ACC_WRITE : 0) |
                   (strchr(access, 'm') ? BPF_DEVCG_ACC_MKNOD : 0);
    int16_t rest = (int16_t)(3 + (major_number != ANY) + (minor_number != ANY));
    emit(BPF_ALU | BPF_MOV | BPF_X, 1, 3, 0, 0);
    emit(BPF_ALU | BPF_AND | BPF_K, 1, 0, 0, bits);
    emit(BPF_JMP | BPF_JNE | BPF_X, 1, 3, rest, 0);
    emit(BPF_JMP | BPF_JNE | BPF_K, 2, 0, --rest, type == 'c' ? BPF_DEVCG_DEV_CHAR : BPF_DEVCG_DEV_BLOCK);
    if (major_number != ANY) emit(BPF_JMP | BPF_JNE | BPF_K, 4, 0, --rest, major_number);
    if (minor_number != ANY) emit(BPF_JMP | BPF_JNE | BPF_K, 5, 0, --rest, minor_number);
    emit_return(1);
    allowed++;
}

/* A missing node is ignored, as by systemd. */
static void allow_node(const char *path, const char *access) {
    struct stat found;
    unsigned major_number, minor_number;
    char type;
    if (sscanf(path, "/dev/%c%*[a-z]/%u:%u", &type, &major_number, &minor_number) == 3 && (type == 'c' || type == 'b'))
        allow(type, (int)major_number, (int)minor_number, access);
    else if (stat(path, &found) == 0 && (S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode)))
        allow(S_ISCHR(found.st_mode) ? 'c' : 'b', (int)major(found.st_rdev), (int)minor(found.st_rdev), access);
}

/* A number, `*`, or a pattern of the names in /proc/devices. */
static void allow_kind(char type, const char *name, const char *access) {
    char *end, *lines = read_whole("/proc/devices", NULL);
    long number_of = strtol(name, &end, 10);
    bool wanted = false;
    if (strcmp(name, "*") == 0) allow(type, ANY, ANY, access);
    else if (*name && !*end) allow(type, (int)number_of, ANY, access);
    else
        for (char *line; (line = strsep(&lines, "\n"));) {
            if (*line == 'C' || *line == 'B') wanted = *line == (type == 'c' ? 'C' : 'B');
            number_of = strtol(line, &end, 10);
            if (wanted && number_of > 0 && *end == ' ' && fnmatch(name, end + 1, 0) == 0) allow(type, (int)number_of, ANY, access);
        }
}

static void allow_usual(void) {
    static const char *const NODES[] = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", NULL};
    for (size_t i = 0; NODES[i]; i++) allow_node(text("/dev/%s", NODES[i]), "rwm");
    /* The device nodes that cover inaccessible paths. */
    allow('c', 0, 0, "rwm");
    allow('b', 0, 0, "rwm");
    allow_kind('c', "pts", "rw");
}

static void attach(const char *group) {
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE, .insn_cnt = count, .insns = (uintptr_t)program, .license = (uintptr_t) "GPL"};
    int fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
    /* On a kernel without such programs there is no restriction, as with systemd. */
    if (fd < 0 && (errno == ENOSYS || errno == EINVAL)) return;
    int directory = open(group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || directory < 0) fail("the devices of the unit: %m");
    union bpf_attr there = {
        .target_fd = (uint32_t)directory, .attach_bpf_fd = (uint32_t)fd, .attach_type = BPF_CGROUP_DEVICE, .attach_flags = BPF_F_ALLOW_MULTI};
    if (syscall(SYS_bpf, BPF_PROG_ATTACH, &there, sizeof there) < 0 && errno != EINVAL) fail("the devices of the unit: %m");
    close(fd);
    close(directory);
}

/* `devices usual|none`, then `device ACCESS PATTERN`: a path, or `char-` or `block-` with a name of /proc/devices. */
void restrict_devices(const char *group) {
    const char *also = fact("devices", "");
    if (!*also) return;
    begin();
    if (strcmp(also, "usual") == 0) allow_usual();
    for (const struct record *r = NULL; (r = next_record(r, "device"));) {
        if (r->count != 2) fail("the description's `device` lacks words");
        const char *pattern = r->words[1], *access = r->words[0];
        if (strncmp(pattern, "char-", 5) == 0) allow_kind('c', pattern + 5, access);
        else if (strncmp(pattern, "block-", 6) == 0) allow_kind('b', pattern + 6, access);
        else allow_node(pattern, access);
    }
    /* The kernel rejects instructions that are never reached. */
    if (!allowed) count = 0;
    emit_return(0);
    attach(group);
}
