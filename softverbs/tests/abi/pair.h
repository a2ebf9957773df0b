/* SPDX-License-Identifier: MIT
 *
 * Two connected queue pairs within one process, made through whatever table of functions a test has got hold of: it is not
 * linked with a libibverbs itself.
 */
#ifndef SOFTVERBS_TESTS_ABI_PAIR_H
#define SOFTVERBS_TESTS_ABI_PAIR_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#undef ibv_reg_mr

/* X(result, name, parameters): the functions that are symbols of the library; the others of verbs.h go through the context. */
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
    struct ibv_cq *cq; /* of both */
    struct ibv_mr *mr;
    uint8_t *memory; /* mapped: the first half is sent from, the second received into */
    union ibv_gid gid;
    int gid_index;
    unsigned access; /* of the queue pairs, beside remote write, and remote read where there is any */
    struct ibv_qp *qp[2];
};

/* A test that fails says where and what, and ends. */
#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fputc('\n', stderr);                                            \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

/* Opens the first device and makes what both queue pairs share; pair->verbs is filled. */
void pair_open(struct pair *);
/* Two queue pairs of a kind, connected to each other: by create_qp, or those that are in pair->qp already. */
void pair_connect(struct pair *, enum ibv_qp_type);
void pair_disconnect(struct pair *);
void pair_close(struct pair *);

/* Different bytes for each seed. */
void pair_fill(uint8_t *, size_t bytes, unsigned seed);
/* Waits for so many completions, which must be successes; the last that was a receive's is left in *receive, if any. */
void pair_wait(struct pair *, int count, struct ibv_wc *receive);
/* One SEND of so many bytes, and one RDMA write followed by its completion; the bytes must be there. */
void pair_send(struct pair *, uint32_t bytes);
void pair_write(struct pair *, uint32_t bytes);

#endif
