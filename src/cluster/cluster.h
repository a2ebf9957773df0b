/* SPDX-License-Identifier: MIT
 *
 * cluster: who the nodes are (settings, hostfile), joining, membership. node/open.c combines it with the other rooms.
 */
#ifndef WEFT_CLUSTER_H
#define WEFT_CLUSTER_H

#include "base/base.h"
#include "fabric/fabric.h"
#include "weft/node.h"

/* --- hostfile.c: weft's own JSON, and MLX's forms ---
 * weft:   {"weft": 1, "coord": "10.0.0.1:7654", "settings": {"pool": "1G"},
 *          "hosts": [{"ssh": "a.local", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en5"], "slots": 1}, ...]}
 * MLX:    [{"ssh": ..., "ips": [...], "rdma": [...]}, ...], or that list as "hosts" of an object
 * ring:   [["10.0.0.1:5000"], ["10.0.0.2:5000"]], one list of HOST:PORT a rank
 * matrix: [[null, "rdma_en5"], ["rdma_en5", null]], the device of rank i towards rank j */
struct cluster_host {
    char *ssh;  /* name to reach it by; NULL: none given */
    char **ips; /* [ip_count] addresses it listens on */
    uint32_t ip_count;
    char **rdma; /* [rdma_count] device towards node j; NULL where there is none (oneself, no cable) */
    uint32_t rdma_count;
    uint32_t machine; /* which entry of the file: nodes with the same number are slots of one host */
};
struct cluster_hostfile {
    struct cluster_host *hosts; /* one a node, in order of rank */
    uint32_t count;
    uint32_t machines; /* entries of the file */
    char *coord;       /* where node 0 listens, when the file says so; else NULL */
    /* Settings the file gives ("settings": {"pool": "1G"}): name/value pairs. */
    struct cluster_pair {
        char *name, *value;
    } * settings;
    uint32_t setting_count;
};
#define CLUSTER_HOSTFILE_MAX (UINT64_C(4) << 20) /* bytes of a file */
/* A wrong file: -EINVAL with "FILE:LINE: field: expected ..., found ...". */
int cluster_hostfile_read(struct cluster_hostfile **out, const char *path);
int cluster_hostfile_parse(struct cluster_hostfile **out, const char *text, size_t len, const char *name);
void cluster_hostfile_free(struct cluster_hostfile *h);

/* --- settings.c: option > environment > hostfile > default; rank and size also from a launcher that speaks PMIx --- */
#define CLUSTER_PORT 7654 /* where node 0 listens when only a hostfile says where it is */

enum cluster_source { CLUSTER_DEFAULT, CLUSTER_HOSTFILE, CLUSTER_PMIX, CLUSTER_ENVIRONMENT, CLUSTER_OPTION };

struct launcher;
struct cluster_settings {
    uint32_t rank, size; /* 0, 1 when alone */
    char coord[128];     /* "" when alone */
    struct fab_options fabric;
    struct mem_options pool; /* but for the heap's offset */
    int64_t join_timeout_ns;
    uint8_t *secret; /* NULL: none; freed (and wiped) by cluster_settings_clear() */
    size_t secret_len;
    struct cluster_hostfile *hosts; /* NULL: none */
    struct launcher *launcher;      /* the launcher that said rank and size; closed by cluster_settings_clear(). NULL: none */
};
/* Resolve all settings; `config` may be NULL. Also sets the log level. On failure `out` holds nothing. */
int cluster_settings_resolve(struct cluster_settings *out, const weft_config *config);
void cluster_settings_clear(struct cluster_settings *s);

/* The table behind it, for `weft config`. */
#define CLUSTER_SETTINGS_MAX 40u
struct cluster_setting_row {
    const char *name;     /* "pool" */
    const char *variable; /* "WEFT_POOL" */
    const char *default_text;
    const char *help; /* one line: what, unit, range */
    char value[256];  /* resolved, as text; a secret shows as "(set)" */
    char from[160];   /* "default", "environment WEFT_POOL", "hostfile PATH", ... */
};
/* `rows` has room for `max`; returns how many there are, or an error. `config` may be NULL: what options say. A missing rank is no error
 * here: who asks is not a node. `launcher`: ask one that speaks PMIx for rank and size, as a node would. */
int cluster_settings_list(struct cluster_setting_row *rows, uint32_t max, const weft_config *config, bool launcher);
/* Before nodes are started: whether WEFT_POOL may be this text, and whether WEFT_SECRET is unset or something. */
int cluster_pool_check(const char *text);
int cluster_secret_check(void);
/* Whether a hostfile may give the setting of this name. */
bool cluster_setting_in_hostfile(const char *name);

/* --- address.c: "HOST:PORT", "[IPV6]:PORT", "unix:PATH", "unix:@NAME" (abstract; Linux) --- */
/* Whether an address is well-formed: 0, or -EINVAL with a sentence. Looks up no names. */
int cluster_address_check(const char *address);
/* A local address that no other cluster has and no stranger can guess: of an abstract socket where there are such, else
 * of a socket file in `dir` (NULL: /tmp). `kind` is part of its name. */
int cluster_private_address(char *out, size_t len, const char *kind, const char *dir);
/* Listen: a close-on-exec, non-blocking socket. On return `bound` has the address in the same notation, with the
 * port that was chosen for port 0. A socket file that nobody listens on any more is replaced. */
int cluster_listen(const char *address, char *bound, size_t bound_len);
/* Take a connection: a close-on-exec socket, without delay (TCP); or a negative errno, without a sentence. */
int cluster_accept(int listener);
/* Close a listener (and remove its socket file). `bound` as cluster_listen() gave it. */
void cluster_unlisten(int fd, const char *bound);
/* For a connection that is to be quick and to last: no delay, keepalive, ..., where a socket has these. */
void cluster_tune(int fd);
/* The numeric host a TCP socket is bound or (`far`) connected to: "10.0.0.1", "[fe80::1%eth0]". -ENOTSUP for others. */
int cluster_socket_host(int fd, bool far, char *out, size_t len);
/* Connect: a close-on-exec, non-blocking socket, without delay (TCP). Tries until `deadline` while nobody listens
 * yet: -ETIMEDOUT then, with the last reason. */
int cluster_connect(const char *address, int64_t deadline);

/* --- join.c --- */
/* Whether what waits for other nodes here is to end (-EINTR): a command sets it that catches signals, so that nodes which join
 * hear them, and yet leave nothing on a device. NULL: never. */
extern int (*cluster_stopped)(void);
struct weft_node;
int cluster_join(struct weft_node *w, struct cluster_settings *s);
/* This node will not join, for this error and the sentence of base_error(): a launcher's other nodes, who wait for it, are told. Waits for
 * them up to the join time-out. Returns `rc`, with the sentence. */
int cluster_failed(struct cluster_settings *s, int rc);

#endif
