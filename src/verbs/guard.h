/* SPDX-License-Identifier: MIT
 *
 * The protocol between a guard (guard_serve.h) and a program that it guards (guard_ask.h). Both are processes of weft on one host. Calls
 * about objects go over a Unix socket, one at a time. Requests and completions go through rings in shared memory. Each word of a ring is
 * written by only one of the two processes. Either process may be killed at any point, and neither trusts the other's data.
 */
#ifndef WEFT_VERBS_GUARD_H
#define WEFT_VERBS_GUARD_H

#include "verbs/verbs.h"
#include "weft/types.h"

#define GUARD_MAGIC    UINT32_C(0x32646777) /* "wgd2" */
#define GUARD_NONE     UINT32_MAX           /* the number of no object */
#define GUARD_CONTEXTS VERBS_DEVICES_MAX
#define GUARD_PORTS    32u /* the shared page has the states of this many ports of a device */
#define GUARD_FD       0   /* in a new guard: the socket to the program that started it */

enum guard_verb {
    GUARD_HELLO = 1, /* the answer comes with two descriptors: the shared page, and a socket by which the program wakes the guard */
    GUARD_SHARE,     /* the call comes with a descriptor of memory; a: address of the memory in the program, b: bytes */
    GUARD_LIST,      /* object: index */
    GUARD_OPEN,      /* object: index */
    GUARD_CLOSE,
    GUARD_QUERY_DEVICE,
    GUARD_QUERY_PORT,   /* a: port */
    GUARD_QUERY_GID,    /* a: port, b: index */
    GUARD_QUERY_GID_EX, /* a: port, b: index */
    GUARD_ALLOC_PD,
    GUARD_DEALLOC_PD,
    GUARD_REG_MR, /* object: domain, a: address, b: bytes, c: access */
    GUARD_DEREG_MR,
    /* object: context; the answer comes with a descriptor, from which the program reads one byte for each completion event */
    GUARD_CREATE_CHANNEL,
    GUARD_DESTROY_CHANNEL,
    GUARD_CREATE_CQ, /* object: context, a: entries wanted, b: channel; the answer comes with a ring of `a` entries */
    GUARD_DESTROY_CQ,
    GUARD_CREATE_QP, /* object: domain, a: send queue, b: receive queue; the answer comes with two rings, of `a` and `b` entries */
    GUARD_QUERY_QP,  /* a: mask */
    GUARD_MODIFY_QP, /* a: mask */
    GUARD_DESTROY_QP,
    GUARD_HOLDERS, /* object: context; the answer's text lists the processes, and how many objects of the device each has */
};

struct guard_call {
    uint32_t verb, object;
    uint64_t a, b, c;
    union {
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init; /* the pointers in it are valid only in the program */
    };
};

struct guard_answer {
    int32_t result;  /* 0, or the verb's errno */
    uint32_t object; /* number of the object that the call has created */
    uint32_t number; /* number of the queue pair that the call has created */
    uint64_t a, b;
    union {
        struct {
            char name[64];
            int32_t transport, node;
        } device;
        struct ibv_device_attr device_attr;
        struct ibv_port_attr port_attr;
        union ibv_gid gid;
        struct {
            uint32_t kind, interface;
        } gid_entry;
        struct {
            struct ibv_qp_attr attr;
            struct ibv_qp_init_attr init;
        } qp;
        char text[400];
    };
};

/* The guard's first message. If the guard could not start, the first word of this message is an errno, and nothing follows. */
struct guard_greeting {
    uint32_t magic, call_bytes, answer_bytes, completion_bytes;
};

struct guard_page {
    _Atomic uint32_t sleeping; /* set by the guard before it sleeps; a program that reads 1 clears this word and wakes the guard */
    _Atomic uint32_t up[GUARD_CONTEXTS]; /* bit i: port i + 1 is up; written by the guard */
};

/* A ring in shared memory, followed by its entries. The writer advances `in`, the reader advances `out`. */
struct guard_ring {
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t in;
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t out;
    _Alignas(BASE_CACHE_LINE) _Atomic uint32_t armed; /* only for completions: the program wants an event for the next completion */
};

struct guard_request {
    uint64_t wr_id, address;
    uint32_t bytes, region;
    uint32_t flags, reserved;
};

struct guard_completion {
    uint64_t wr_id;
    uint32_t status, opcode, bytes, qp_num;
};

static inline uint64_t guard_ring_bytes(uint64_t entries, size_t each)
{
    return base_round_up(sizeof(struct guard_ring) + entries * each, BASE_PAGE);
}

#endif
