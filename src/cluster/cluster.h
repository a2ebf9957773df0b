/* SPDX-License-Identifier: MIT
 *
 * cluster: who the nodes are (settings, hostfile), joining, membership. node/open.c combines this directory with the other directories of
 * src.
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
 * ring:   [["10.0.0.1:5000"], ["10.0.0.2:5000"]], a list of HOST:PORT for each rank
 * matrix: [[null, "rdma_en5"], ["rdma_en5", null]], the device of rank i towards rank j */
struct cluster_host {
    char *ssh;  /* the host's name for ssh; NULL: the file gives no name */
    char **ips; /* [ip_count] addresses of the host */
    uint32_t ip_count;
    char **rdma; /* [rdma_count] rdma[j]: device towards node j; NULL: there is no cable to node j, or j is this node */
    uint32_t rdma_count;
    uint32_t machine; /* index of the host's entry in the file; the same for all nodes of a host */
};
struct cluster_hostfile {
    struct cluster_host *hosts; /* [count] one for each node, by rank */
    uint32_t count;
    uint32_t machines; /* number of hosts in the file */
    char *coord;       /* address at which node 0 listens; NULL: the file has no address */
    /* The file's "settings", as in {"pool": "1G"}. */
    struct cluster_pair {
        char *name, *value;
    } * settings;
    uint32_t setting_count;
};
#define CLUSTER_HOSTFILE_MAX (UINT64_C(4) << 20) /* maximum size of a hostfile, in bytes */
/* Return -EINVAL for an invalid file. The error text has the form "FILE:LINE: field: expected ..., found ...". */
int cluster_hostfile_read(struct cluster_hostfile **out, const char *path);
int cluster_hostfile_parse(struct cluster_hostfile **out, const char *text, size_t len, const char *name);
void cluster_hostfile_free(struct cluster_hostfile *h);

/* --- settings.c: an option overrides the environment, which overrides the hostfile, which overrides the default; a PMIx launcher can give
 * rank and size --- */
#define CLUSTER_PORT 7654 /* port of node 0 if the hostfile gives only its host */

enum cluster_source { CLUSTER_DEFAULT, CLUSTER_HOSTFILE, CLUSTER_PMIX, CLUSTER_ENVIRONMENT, CLUSTER_OPTION };

struct launcher;
struct join;
struct cluster_settings {
    uint32_t rank, size;
    uint32_t founders;  /* number of nodes that started the cluster. Equal to `size` unless this node joins a running cluster */
    char grow[128];     /* address at which other nodes can join the running cluster; "": none */
    char join[512];     /* comma-separated addresses of members of the running cluster that this node joins; "": none */
    struct join *entry; /* the answer of the running cluster, from cluster_enter(); NULL: there is none */
    char coord[128];    /* address at which node 0 listens; "" in a cluster of one node */
    struct fab_options fabric;
    struct mem_options pool; /* everything except its field heap_offset */
    int64_t join_timeout_ns;
    char serve[64];       /* names of the services that this node offers */
    char net_rules[1024]; /* service `net`: addresses to which this node connects for other nodes */
    uint32_t names;       /* how many names a node may publish at this node; 0: three quarters of all names */
    uint32_t net_sockets; /* how many sockets a node may have at this node; 0: three quarters of all sockets */
    char file_root[1024]; /* the service `file` serves the files below this directory; "": all files */
    uint64_t file_cache;  /* maximum size of cached files in the pool, in bytes; 0: a quarter of the pool */
    uint8_t *secret;      /* NULL: there is no secret. Wiped and freed by cluster_settings_clear() */
    size_t secret_len;
    struct cluster_hostfile *hosts; /* NULL: none */
    /* connection to the launcher that gave rank and size; NULL: there is none. Closed by cluster_settings_clear() */
    struct launcher *launcher;
};
/* Find the values of all settings, and set the log level. `config` may be NULL. On failure `out` is all zeros. */
int cluster_settings_resolve(struct cluster_settings *out, const weft_config *config);
void cluster_settings_clear(struct cluster_settings *s);

/* All settings as text, for `weft config`. */
#define CLUSTER_SETTINGS_MAX 48u
struct cluster_setting_row {
    const char *name;     /* "pool" */
    const char *variable; /* "WEFT_POOL" */
    const char *default_text;
    const char *help; /* one line: what, unit, range */
    char value[256];  /* the resolved value as text; "(set)" for a secret */
    char from[160];   /* "default", "environment WEFT_POOL", "hostfile PATH", ... */
};
/* Fill up to `max` rows and return their number, or a negative errno. `config` holds the values of command-line options, and may be NULL. A
 * missing rank is no error, because the caller need not be a node. `launcher`: also ask a PMIx launcher for rank and size. */
int cluster_settings_list(struct cluster_setting_row *rows, uint32_t max, const weft_config *config, bool launcher);
/* Checks to make before nodes are started. cluster_pool_check(): `text` must be a valid WEFT_POOL. cluster_secret_check(): WEFT_SECRET must
 * not be set to an empty text. */
int cluster_pool_check(const char *text);
int cluster_secret_check(void);
bool cluster_setting_in_hostfile(const char *name);
bool cluster_is_setting(const char *variable); /* whether the variable is weft's (WEFT_*) or libfabric's (FI_*) */

/* --- address.c: "HOST:PORT", "[IPV6]:PORT", "unix:PATH", "unix:@NAME" (abstract; Linux) --- */
/* Check the form of an address, without resolving names: 0 or -EINVAL. */
int cluster_address_check(const char *address);
/* Make a unique address for a Unix socket. Nobody can guess the address. On Linux it is an abstract name, elsewhere a path in `dir` (NULL:
 * /tmp). The address contains `kind`. */
int cluster_private_address(char *out, size_t len, const char *kind, const char *dir);
/* Open a close-on-exec, non-blocking listener. `bound` gets the listener's address in the same notation, with the chosen port in place of
 * port 0. A socket file on which nobody listens is replaced. */
int cluster_listen(const char *address, char *bound, size_t bound_len);
/* Accept a connection. Returns a close-on-exec socket, tuned by cluster_tune(), or a negative errno without base_fail(). */
int cluster_accept(int listener);
/* Close a listener and remove its socket file. `bound` is what cluster_listen() returned. */
void cluster_unlisten(int fd, const char *bound);
/* Set the options of a TCP connection: no delay, keepalive, and linear retransmission time-outs where the system has them. */
void cluster_tune(int fd);
/* The numeric address of a TCP socket, or of its peer if `far`: "10.0.0.1", "[fe80::1%eth0]". Returns -ENOTSUP if it is not a TCP
 * socket. */
int cluster_socket_host(int fd, bool far, char *out, size_t len);
/* The numeric source address with which this host reaches `address` (HOST:PORT), as in "10.0.0.2", "[fd00::2]". Sends nothing. */
int cluster_address_towards(const char *address, char *out, size_t len);
/* Connect: returns a close-on-exec, non-blocking socket, tuned by cluster_tune(). Retries until `deadline` while nobody listens or there is
 * no route. If it returns -ETIMEDOUT, the error text says why the last attempt failed. */
int cluster_connect(const char *address, int64_t deadline);

/* --- join.c --- */
/* A callback. If it returns non-zero, all waits for other nodes end with -EINTR. NULL: none. Commands that catch signals set it, so that
 * their nodes free their RDMA devices when a signal interrupts joining. */
extern int (*cluster_stopped)(void);
struct weft_node;
int cluster_join(struct weft_node *w, struct cluster_settings *s);
/* The first step of joining a running cluster (s->join): asks a member for a rank, and sets rank, size and founders. */
int cluster_enter(struct cluster_settings *s);
/* Whether nodes may join this cluster later. */
static inline bool cluster_grows(const struct cluster_settings *s)
{
    return s->grow[0] || s->join[0];
}
/* Start and stop accepting nodes that join. Call cluster_door_open() when the node is open, and cluster_door_close() before the fabric
 * stops. Both do nothing if no node can join this cluster. */
int cluster_door_open(struct weft_node *w);
void cluster_door_close(struct weft_node *w);
/* Report to the other nodes of the launcher's job that this node failed before joining, with error `rc` and the text of base_error(). Waits
 * until all nodes have called weft_open(), but no longer than the join time-out. Returns `rc`, and does not change base_error(). */
int cluster_failed(struct cluster_settings *s, int rc);

#endif
