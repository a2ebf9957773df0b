/* SPDX-License-Identifier: MIT
 *
 * What services use for requests by record (weft/request.h): objects that records name by a handle, such as a socket, copies from and to
 * the memory that a record names, and answers that come after submit() has returned. Lowest first:
 *
 *   record_object.c   objects, and answers
 *   record_copy.c     copies
 *   net_record.c      records of the net service
 *   file_record_get.c, file_record_read.c, file_record.c   records of the file service
 *   record.c          takes records from programs and kernels, and hands them to their service
 */
#ifndef WEFT_GATEWAY_RECORD_H
#define WEFT_GATEWAY_RECORD_H

#include "gateway/gateway.h"

/* A record that is not answered yet. Every node can write to the record in the pool, so only a copy, `r`, is checked and used. */
struct gateway_record {
    weft_request r;
    weft_request *there; /* the record in the pool */
    const struct gateway_service *service;
    weft_gpu_call *call; /* the kernel's call; NULL: the record is a program's */
    weft_op *op;         /* the program's op; completed if the record is answered after submit() has returned */
    void *data;
    uint64_t arg;
};

/* submit() returns this if the service answers with gateway_record_answer(), now or later. */
#define GATEWAY_LATER 2

/* --- record_object.c --- */
/* Writes the answer into the record. Called on any thread, with or without gateway.lock. */
void gateway_record_write(const struct gateway_record *x, int status);
/* Answers a record for which submit() returns GATEWAY_LATER. `r` is the pointer that submit() got; frees `r`. Called on any thread, with or
 * without gateway.lock. */
void gateway_record_answer(struct gateway *g, weft_request *r, int status);

/* A process, socket or file that records name by a handle. A closed object is freed when no record uses it any more. */
struct gateway_object {
    uint64_t id; /* the handle; 0: the object has no handle yet */
    uint16_t service;
    bool closed;
    uint32_t uses;
    /* The caller does not hold gateway.lock. Must not wait. `over`: the node is closed, so free only memory. */
    void (*free)(struct gateway *g, struct gateway_object *o, bool over);
    struct gateway_object *next_dead;
};
int gateway_object_add(struct gateway *g, struct gateway_object *o); /* gives the object a handle; returns 0 or -ENOMEM */
/* Returns the object that the record names. Until gateway_object_leave() it cannot be freed. Returns NULL if this service has no such
 * object. */
struct gateway_object *gateway_object_use(struct gateway *g, const weft_request *r);
void gateway_object_leave(struct gateway *g, struct gateway_object *o);
void gateway_object_leave_locked(struct gateway *g, struct gateway_object *o); /* the caller holds gateway.lock */
/* Takes away the object's handle. The object is freed when nobody uses it any more. */
void gateway_object_close(struct gateway *g, struct gateway_object *o);
void gateway_object_close_locked(struct gateway *g, struct gateway_object *o); /* the caller holds gateway.lock */

/* --- record_copy.c --- */
enum gateway_copy_step { COPY_BEGINS, COPY_GETS, COPY_GOT, COPY_PUTS, COPY_FLUSHES };
/* A copy from one address to another. The addresses may be in any pool or arena. */
struct gateway_copy {
    struct gateway_copy *next;
    struct gateway *g;
    weft_gaddr to, from;
    uint64_t bytes;
    /* Called once, on any thread, without gateway.lock. `status`: 0: the bytes are at `to` now; otherwise a negative errno. */
    void (*done)(struct gateway_copy *c, int status);
    enum gateway_copy_step step;
    weft_gaddr between; /* a buffer in this node's pool, for a copy between two other nodes; WEFT_NULL: there is no buffer */
    weft_op op;
    struct fab_flush flush;
};
/* Begins a copy. The caller has set `to`, `from`, `bytes` and `done`. Does not wait. done() may be called before this function returns. */
void gateway_copy(struct gateway *g, struct gateway_copy *c);

/* --- net_record.c, file_record.c: struct gateway_service --- */
int gateway_net_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
int gateway_file_submit(struct gateway *g, weft_request *r, void *data, uint64_t *arg);
void gateway_file_told(struct gateway *g, weft_request *r, uint64_t arg, const struct gateway_result *result, void *data);
bool gateway_file_valid(uint16_t kind, const struct gateway_result *r);
void gateway_file_late(struct gateway *g, const struct gateway_ask *a, const struct gateway_result *r);

#endif
