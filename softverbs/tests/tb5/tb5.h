/* SPDX-License-Identifier: MIT
 *
 * What the checks of Apple's device share. Two processes do each check, `left` on host 0 and `right` on
 * host 1 at the other end of the cable, with a socket between them. They use the public verbs alone.
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
    QUIET_MS = 60,    /* in which nothing must happen */
    LIMIT_MS = 20000, /* in which something must */
    V4 = 1,           /* index of the IPv4-mapped entry */
};

extern bool strict;                        /* the profile is tb5-strict */
extern const char *command, *library_path; /* softverbs, librdma.dylib */
extern bool left;                          /* this process is that side */
extern int wire;                           /* to the other side */

struct check {
    const char *name;
    void (*run)(void);
    unsigned hosts;                /* of the mesh; 0: two */
    void (*plan)(struct ground *); /* what is to be different in the fabric */
    bool right_dies;
};
/* Each ends with one that has no name. */
extern const struct check device_checks[], limit_checks[], data_checks[];

/* ---- Saying what is wrong ------------------------------------------------------------------------------ */
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
/* Both are here. */
void meet(void);
void nap(void);

/* ---- What every program does --------------------------------------------------------------------------- */
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
/* A device, a domain, a completion queue, and memory registered with all flags. */
struct end begin(size_t bytes);
struct card trade(struct card mine);
/* As begin, and a queue pair connected to the other side's. */
struct end join(size_t bytes, uint32_t depth);
int post_send(struct end *, uint64_t id, size_t offset, size_t bytes);
int post_receive(struct end *, uint64_t id, size_t offset, size_t bytes);
/* The next completion within `ms`; false: none came. */
bool next(struct end *, struct ibv_wc *, int ms);
/* The next completion, which must be a success of request `id`. */
void done(struct end *, uint64_t id);
void fill(uint8_t *bytes, size_t count, unsigned seed);
bool filled(const uint8_t *bytes, size_t count, unsigned seed);
/* Runs in a process of its own, which may do with the verbs what this one has not begun to: its exit
 * status, or 128 and the signal that ended it. */
int apart(int (*run)(void));
/* The command; its exit status. */
int softverbs(const char *verb, const char *what, const char *word);

#endif
