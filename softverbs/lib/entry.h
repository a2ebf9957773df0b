/* SPDX-License-Identifier: MIT
 *
 * Functions for a context's table of operations, in addition to those declared in lib.h.
 */
#ifndef SOFTVERBS_ENTRY_H
#define SOFTVERBS_ENTRY_H

#include "lib.h"

/* query.c */
int sv_query_port(struct ibv_context *, uint8_t port, struct ibv_port_attr *, size_t bytes);
int sv_query_device_ex(struct ibv_context *, const struct ibv_query_device_ex_input *, struct ibv_device_attr_ex *, size_t);
int sv_query_rt_values(struct ibv_context *, struct ibv_values_ex *);
/* cq_ex.c */
struct ibv_cq_ex *sv_create_cq_ex(struct ibv_context *, struct ibv_cq_init_attr_ex *);

#endif
