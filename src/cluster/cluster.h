/* SPDX-License-Identifier: MIT
 *
 * cluster: who the nodes are (settings, hostfile), joining them, membership. weft_open() and weft_close() are here.
 */
#ifndef WEFT_CLUSTER_H
#define WEFT_CLUSTER_H

#include "base/base.h"
#include "weft/node.h"

/* --- hostfile.c: weft's own JSON, and MLX's two forms --- */
struct cluster_host {
    char *ssh;      /* name to reach it by; NULL: none given */
    char **ips;     /* [ip_count] addresses it listens on */
    uint32_t ip_count;
    char **rdma;    /* [rdma_count] device towards node j; NULL where there is none (oneself, no cable) */
    uint32_t rdma_count;
};
struct cluster_hostfile {
    struct cluster_host *hosts; /* one a node, in order of rank */
    uint32_t count;
    /* Settings the file gives ("settings": {"pool": "1G"}): name/value pairs. */
    struct {
        char *name, *value;
    } *settings;
    uint32_t setting_count;
};
/* A wrong file: -EINVAL with "FILE:LINE: field: expected ..., found ...". */
int cluster_hostfile_read(struct cluster_hostfile **out, const char *path);
int cluster_hostfile_parse(struct cluster_hostfile **out, const char *text, size_t len, const char *name);
void cluster_hostfile_free(struct cluster_hostfile *h);

/* --- settings.c: option > environment > hostfile > default --- */
enum cluster_source { CLUSTER_DEFAULT, CLUSTER_HOSTFILE, CLUSTER_ENVIRONMENT, CLUSTER_OPTION };

struct cluster_settings {
    uint32_t rank, size; /* 0, 1 when alone */
    char coord[128];     /* "" when alone */
    char transport[16];  /* "" = choose */
    uint8_t *secret;     /* NULL: none; freed (and wiped) by cluster_settings_clear() */
    size_t secret_len;
    uint64_t pool_bytes;
    uint32_t pool_flags;
    int64_t deadline_ns, join_timeout_ns, liveness_ns, spin_ns;
    struct cluster_hostfile *hosts; /* NULL: none */
};
/* Resolve all settings; `config` may be NULL. Also sets the log level. */
int cluster_settings_resolve(struct cluster_settings *out, const weft_config *config);
void cluster_settings_clear(struct cluster_settings *s);

/* The table behind it, for `weft config`. */
struct cluster_setting_row {
    const char *name;        /* "pool" */
    const char *variable;    /* "WEFT_POOL" */
    const char *default_text;
    const char *help;        /* one line: what, unit, range */
    char value[256];         /* resolved, as text; a secret shows as "(set)" */
    char from[128];          /* "default", "environment WEFT_POOL", "hostfile PATH", ... */
};
/* `rows` has room for `max`; returns how many there are, or an error. */
int cluster_settings_list(struct cluster_setting_row *rows, uint32_t max);

/* --- address.c: "HOST:PORT", "unix:PATH", "unix:@NAME" --- */
struct sockaddr_storage;
/* Listen; on return `bound` has the address in the same notation, with the port that was chosen for port 0. */
int cluster_listen(const char *address, char *bound, size_t bound_len);
int cluster_connect(const char *address, int64_t deadline); /* tries until the deadline */

/* --- join.c --- */
struct weft;
int cluster_join(struct weft *w, const struct cluster_settings *s);

#endif
