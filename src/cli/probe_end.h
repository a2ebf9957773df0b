/* SPDX-License-Identifier: MIT
 *
 * One end of a connection of `weft probe`: a device, a region cut into buffers, a queue pair, and a stream to the other end, over which the
 * two keep in step.
 */
#ifndef WEFT_CLI_PROBE_END_H
#define WEFT_CLI_PROBE_END_H

#include "cli/probe.h"

struct probe_end {
    const struct probe *p;
    int fd;               /* the stream */
    bool leads;           /* sets sizes and says what comes next */
    bool lane;            /* an unreliable queue pair, with as much under way as it takes; else one request at a time */
    uint32_t count;       /* buffers */
    uint64_t size, bytes; /* of one; of all */
    struct verbs_device *d;
    uint8_t *base;
    struct verbs_regions region;
    struct ibv_cq *cq;
    struct verbs_qp q;
    bool can_write, can_read; /* both ends */
    uint64_t their_base;
    uint32_t their_key;
    char theirs[32]; /* the other end's device */
};

/* `d` becomes the end's. 0, or a negative errno with a sentence, which the other end is told too. */
int probe_end_open(struct probe_end *e, struct verbs_device *d);
void probe_end_close(struct probe_end *e);

/* The stream to the end on another host, by --listen or --peer: a descriptor; negative with a sentence, or -1 without when
 * neither was asked for. */
int probe_end_reach(const struct probe *p);
/* Closes what probe_end_reach() gave, -1 too. */
void probe_end_hang_up(int fd);

/* A value to the other end, and one from there. */
int probe_end_trade(struct probe_end *e, int64_t say, int64_t *hear);
int probe_end_say(struct probe_end *e, int64_t value);
int probe_end_hear(struct probe_end *e, int64_t *value);

/* One request on buffer `mine`, for WRITE and READ with their buffer `theirs`; complete when they return. */
int probe_end_do(struct probe_end *e, enum ibv_wr_opcode opcode, uint32_t mine, uint32_t theirs);
int probe_end_post_receive(struct probe_end *e, uint32_t mine);
/* -ETIMEDOUT: nothing came. */
int probe_end_received(struct probe_end *e, int64_t timeout_ns);

#endif
