/* SPDX-License-Identifier: MIT
 *
 * Helpers of the checks of Apple's device. Two processes do each check: `left` on host 0, and `right` on host 1 at the other end of the
 * cable. A socket connects them. They use only the public verbs.
 */
#ifndef SOFTVERBS_TESTS_TB5_H
#define SOFTVERBS_TESTS_TB5_H

#include "../ground.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FRAME = 4096,
    ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    QUIET_MS = 60,    /* a time in which nothing may happen */
    LIMIT_MS = 20000, /* a time in which something must happen */
    V4 = 1,           /* index of the IPv4-mapped GID */
};

extern bool strict;                        /* the profile is tb5-strict */
extern const char *command, *library_path; /* paths of the command softverbs and of librdma.dylib */
extern bool left;                          /* whether this process is the left side */
extern int wire;                           /* the socket to the other side */

struct check {
    const char *name;
    void (*run)(void);
    unsigned hosts;                /* number of hosts in the mesh; 0: two */
    void (*plan)(struct ground *); /* changes the model before the fabric is made; may be NULL */
    bool right_dies;
};
/* Each list ends with an entry without a name. */
extern const struct check device_checks[], limit_checks[], data_checks[];

/* ---- Reporting failures --------------------------------------------------------------------------------- */
void failed(int line, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
#define expect(condition) ((condition) ? (void)0 : failed(__LINE__, "expected %s", #condition))
#define expect_error(result, wanted)                                           \
    do {                                                                       \
        const int is_ = (int)(result), wanted_ = (int)(wanted);                \
        if (is_ != wanted_) {                                                  \
            failed(__LINE__, "%s: expected %d, is %d", #result, wanted_, is_); \
        }                                                                      \
    } while (0)

/* ---- Both sides ---------------------------------------------------------------------------------------- */
void tell(const void *bytes, size_t count);
void hear(void *bytes, size_t count);
/* Waits until both sides have called it. */
void meet(void);
void nap(void);

/* ---- What every program needs --------------------------------------------------------------------------- */
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint8_t *memory;
    size_t bytes;
    union ibv_gid gid;
};

struct card {
    union ibv_gid gid;
    uint32_t number;
};

struct ibv_context *open_port(unsigned port);
uint8_t *map(size_t bytes);
struct ibv_qp *make_qp(const struct end *, enum ibv_qp_type, uint32_t depth);
int to_init(struct ibv_qp *);
int to_rtr(struct ibv_qp *, const union ibv_gid *to, uint32_t number, uint8_t index, enum ibv_mtu);
int to_rts(struct ibv_qp *);
/* Makes a device, a domain, a completion queue, and memory registered with all flags. */
struct end begin(size_t bytes);
struct card trade(struct card mine);
/* As begin(), plus a queue pair that is connected to the other side's. */
struct end join(size_t bytes, uint32_t depth);
int post_send(struct end *, uint64_t id, size_t offset, size_t bytes);
int post_receive(struct end *, uint64_t id, size_t offset, size_t bytes);
/* Waits up to `ms` for the next completion; false: none came. */
bool next(struct end *, struct ibv_wc *, int ms);
/* Waits for the next completion, which must be a success of request `id`. */
void done(struct end *, uint64_t id);
void fill(uint8_t *bytes, size_t count, unsigned seed);
bool filled(const uint8_t *bytes, size_t count, unsigned seed);
/* Call `run` in a new process, which has not used the verbs before. Returns its exit status, or 128 plus the signal that ended it. */
int apart(int (*run)(void));
/* Runs the command softverbs; returns its exit status. */
int softverbs(const char *verb, const char *what, const char *word);

#endif
