/* SPDX-License-Identifier: MIT
 *
 * One end of a connection of `weft probe`: a device, a region that is divided into buffers, a queue pair, and a stream socket by which the
 * two ends synchronise.
 */
#ifndef WEFT_CLI_PROBE_END_H
#define WEFT_CLI_PROBE_END_H

#include "cli/probe.h"

struct probe_end {
    const struct probe *p;
    int fd;               /* the stream */
    bool leads;           /* this end chooses the sizes and the order of the tests */
    bool lane;            /* use an unreliable queue pair with many requests in flight; false: one request at a time */
    uint32_t count;       /* number of buffers */
    uint64_t size, bytes; /* size: bytes of one buffer; bytes: bytes of all buffers */
    struct verbs_device *d;
    uint8_t *base;
    struct verbs_regions region;
    struct ibv_cq *cq;
    struct verbs_qp q;
    bool can_write, can_read; /* whether the devices of both ends support RDMA WRITE, RDMA READ */
    uint64_t their_base;
    uint32_t their_key;
    char theirs[32]; /* the other end's device */
};

/* Connect the two ends. `e` takes ownership of `d`. Returns 0, or a negative errno with base_error(); then the other end reports this
 * error, too. */
int probe_end_open(struct probe_end *e, struct verbs_device *d);
void probe_end_close(struct probe_end *e);

/* Open the stream to the other host, for --listen or --peer. Returns a descriptor, or a negative errno with base_error(). Without these
 * options, -1 without an error text. */
int probe_end_reach(const struct probe *p);
/* Close the result of probe_end_reach(); it may be -1. */
void probe_end_hang_up(int fd);

/* Send a value to the other end, and receive one from it. */
int probe_end_trade(struct probe_end *e, int64_t say, int64_t *hear);
int probe_end_say(struct probe_end *e, int64_t value);
int probe_end_hear(struct probe_end *e, int64_t *value);

/* Post a request on buffer `mine` and wait for its completion. WRITE and READ use buffer `theirs` of the other end. */
int probe_end_do(struct probe_end *e, enum ibv_wr_opcode opcode, uint32_t mine, uint32_t theirs);
int probe_end_post_receive(struct probe_end *e, uint32_t mine);
/* Wait for the completion of a receive. Returns -ETIMEDOUT if no message arrived. */
int probe_end_received(struct probe_end *e, int64_t timeout_ns);

#endif
