/* SPDX-License-Identifier: MIT
 *
 * Two connected queue pairs in one process. They are made through a table of functions that the test fills in: this file is not linked with
 * a libibverbs.
 */
#ifndef SOFTVERBS_TESTS_ABI_PAIR_H
#define SOFTVERBS_TESTS_ABI_PAIR_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#undef ibv_reg_mr

/* X(result, name, parameters) for each function that is a symbol of the library. The other functions of verbs.h go through the context. */
#define PAIR_FUNCTIONS(X)                                                                              \
    X(struct ibv_device **, get_device_list, (int *))                                                  \
    X(void, free_device_list, (struct ibv_device **))                                                  \
    X(const char *, get_device_name, (struct ibv_device *))                                            \
    X(struct ibv_context *, open_device, (struct ibv_device *))                                        \
    X(int, close_device, (struct ibv_context *))                                                       \
    X(int, query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *))                           \
    X(struct ibv_pd *, alloc_pd, (struct ibv_context *))                                               \
    X(int, dealloc_pd, (struct ibv_pd *))                                                              \
    X(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int))                                 \
    X(int, dereg_mr, (struct ibv_mr *))                                                                \
    X(struct ibv_cq *, create_cq, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
    X(int, destroy_cq, (struct ibv_cq *))                                                              \
    X(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *))                        \
    X(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int))                                    \
    X(int, destroy_qp, (struct ibv_qp *))                                                              \
    X(const char *, wc_status_str, (enum ibv_wc_status))

struct verbs_table {
#define X(result, name, parameters) result(*name) parameters;
    PAIR_FUNCTIONS(X)
#undef X
};

enum { PAIR_BYTES = 1 << 20, PAIR_HALF = PAIR_BYTES / 2, PAIR_DEPTH = 16 };

struct pair {
    struct verbs_table verbs;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq; /* used by both queue pairs */
    struct ibv_mr *mr;
    uint8_t *memory; /* mapped memory: the first half is sent from, the second received into */
    union ibv_gid gid;
    int gid_index;
    /* access flags of the queue pairs, in addition to remote write, and remote read if supported */
    unsigned access;
    struct ibv_qp *qp[2];
};

/* If the condition is false, prints where and what, and ends the process. */
#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fputc('\n', stderr);                                            \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

/* Opens the first device and makes the objects that both queue pairs share. pair->verbs must be filled in. */
void pair_open(struct pair *);
/* Connects two queue pairs of a type to each other: those in pair->qp, or new ones made by create_qp. */
void pair_connect(struct pair *, enum ibv_qp_type);
void pair_disconnect(struct pair *);
void pair_close(struct pair *);

/* Different bytes for each seed. */
void pair_fill(uint8_t *, size_t bytes, unsigned seed);
/* Waits for `count` completions, which must be successful. *receive (may be NULL) gets the last one of a receive. */
void pair_wait(struct pair *, int count, struct ibv_wc *receive);
/* Do one SEND of `bytes` bytes and one RDMA write; check the completions, and that the bytes have arrived. */
void pair_send(struct pair *, uint32_t bytes);
void pair_write(struct pair *, uint32_t bytes);

#endif
