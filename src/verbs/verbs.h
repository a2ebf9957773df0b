/* SPDX-License-Identifier: MIT
 *
 * verbs: devices, traits, the choice of a GID, regions, queue pairs. All code that calls ibv_* is in this folder.
 *
 * The library is loaded at run time (library.c): a machine without it works over shared memory. Code that depends on what a device can do
 * looks at the device's traits, never at its vendor's name.
 */
#ifndef WEFT_VERBS_H
#define WEFT_VERBS_H

#include <infiniband/verbs.h>

#include "base/base.h"

/* Some systems' headers do not declare it. */
struct ibv_srq;
struct ibv_srq_init_attr;
struct ibv_gid_entry;

/* --- library.c: libibverbs or librdma, through one table ---
 * ibv_post_send, ibv_post_recv, ibv_poll_cq and ibv_req_notify_cq are inline and go through the context. */
struct verbs_library {
    char path[256];
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr); /* fills in the older, smaller structure */
    int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
    /* _ibv_query_gid_ex, which tells the kind of a GID entry (enum verbs_gid_kind). NULL: the library does not have it. */
    int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
                        size_t entry_size);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access); /* or NULL */
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr); /* or NULL */
    int (*destroy_srq)(struct ibv_srq *srq);                                          /* or NULL */
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);
    const char *(*wc_status_str)(enum ibv_wc_status status);
    /* Only in the library of a guard: says which processes hold how many queue pairs and regions of the device. NULL: not known. */
    void (*holders)(struct ibv_context *context, char *out, size_t len);
};
/* Returns the table of the library's functions, which the first call loads and keeps. -ENOENT: the library cannot be loaded; the error text
 * has the names that were tried, the loader's message, and the package or macOS version that has the library. Any thread may call.
 * WEFT_VERBS_LIBRARY names another file. */
int verbs_load(const struct verbs_library **out);
/* Convert the result of a verb to a negative errno of this system. Some verbs return the errno, others return -1 and set errno. A
 * Thunderbolt device uses macOS's numbers, even if it is simulated on another system (`thunderbolt`). `returned` 0: only errno counts (the
 * verb returned NULL). `raw` (may be NULL): the number before the conversion, for messages. */
int verbs_code(int returned, bool thunderbolt, int *raw);
/* The end of an error message, such as ". The programs of its guard have: process 12 (name) 2 queue pairs and 1 regions". "": the library
 * does not know who has objects of the device. */
const char *verbs_holders(const struct verbs_library *lib, struct ibv_context *context, char *out, size_t len);

/* --- traits.c --- */
enum verbs_link { VERBS_INFINIBAND, VERBS_ETHERNET, VERBS_THUNDERBOLT, VERBS_OTHER };

struct verbs_traits {
    enum verbs_link link;
    bool rc, uc, ud;                /* the kinds of queue pairs that the device can make */
    bool write, read, srq;          /* RDMA write and read, shared receive queues */
    bool atomics, atomics_with_cpu; /* 64-bit; atomic against this machine's processors too */
    bool dmabuf;
    bool acknowledges;                    /* a completed send has arrived at the peer (RC); false: it has only left this device (UC) */
    uint32_t qps, pds, regions, cqs, cqe; /* how many the device can make: less than it reports, where it is known to report too much */
    uint64_t region_bytes;                /* the largest region that works; weft asks for at most 1 GiB in one region */
    uint64_t message_bytes;
    uint32_t depth, depth_unit_bytes; /* the depth of a work queue, in frames of depth_unit_bytes; unit 0: in requests */
    uint32_t srq_depth;               /* requests of a shared receive queue; 0: the device has no shared receive queues */
    uint32_t sge, inline_bytes, rd_atomic;
    uint32_t pkeys, gids;
    int access, access_else; /* flags to register with; access_else is tried when the device refuses `access` (0: nothing else is tried) */
    bool heap;               /* memory from malloc() can be registered */
    enum ibv_mtu mtu;
};
/* Makes the traits from the device's answers and from what is known about its transport. `transport` is ibv_device.transport_type. Has no
   side effects. */
void verbs_traits_from(struct verbs_traits *out, int transport, const struct ibv_device_attr *device, const struct ibv_port_attr *port,
                       bool has_dmabuf);
/* Whether this host has a Thunderbolt device. Opens none. */
bool verbs_thunderbolt_here(void);

/* --- gid.c --- */
enum verbs_gid_kind { VERBS_GID_UNKNOWN = -1, VERBS_GID_IB = 0, VERBS_GID_ROCE_V1 = 1, VERBS_GID_ROCE_V2 = 2 };
struct verbs_gid {
    union ibv_gid raw;
    uint32_t index;
    enum verbs_gid_kind kind;
};
struct verbs_choice {
    struct verbs_gid gid;
    char why[160]; /* "IPv4-mapped, index 1, RoCE v2" */
};
/* Chooses the GID entry to use, which is the sgid_index. An IPv4-mapped address comes first (RoCE v2 before v1 where the type is known),
 * then any non-zero entry, index 1 first. If there is none: -EADDRNOTAVAIL, and the error text names device, table and remedy. `wanted` >=
 * 0: that index, or an error. An InfiniBand link layer needs no global address: index 0. The function only computes; `device` and
 * `interface` are for the error text. */
int verbs_choose_gid(struct verbs_choice *out, const struct verbs_gid *table, uint32_t count, int wanted, bool infiniband,
                     const char *device, const char *interface);
/* "fe80::1" into `out` (at least 40 bytes). */
const char *verbs_gid_text(const union ibv_gid *gid, char *out, size_t len);

/* --- device.c --- */
#define VERBS_DEVICES_MAX 64u
struct verbs_device {
    const struct verbs_library *lib;
    struct ibv_context *context;
    struct ibv_pd *pd; /* NULL until verbs_device_use() */
    char name[64];
    char interface[32]; /* the IP interface of the device, where it is known: "en5"; else "" */
    uint8_t port;
    struct ibv_device_attr attr;
    struct ibv_port_attr port_attr;
    struct verbs_traits traits;
    struct verbs_gid *gids; /* the GID table as read from the device; includes entries that are zero */
    uint32_t gid_count;
    struct verbs_choice chosen; /* valid when usable */
    int usable;                 /* 0, or a negative errno: why weft does not use it */
    char why_not[960];          /* the error text for `usable` */
    double gbits;               /* of the active link; 0: unknown */
};
/* Opens and queries all devices; allocates nothing on them. `wanted_gid` -1: choose one. Close them with verbs_devices_close(). */
int verbs_devices(struct verbs_device **out, uint32_t *count, int wanted_gid);
/* As verbs_devices(), for the devices of this library. */
int verbs_devices_of(const struct verbs_library *lib, struct ibv_device **list, int given, struct verbs_device **out, uint32_t *count,
                     int wanted_gid);
void verbs_devices_close(struct verbs_device *devices, uint32_t count);
/* One device by name (NULL: the best usable one, fastest first), opened. -ENODEV: the error text lists what there is. */
int verbs_device_open(struct verbs_device **out, const char *name, int wanted_gid);
/* Other devices (and ports) that are as good as this one: as fast, of the same kind of link, with the same operations. At most
 * `max`, opened; close each with verbs_device_close(). */
int verbs_devices_like(const struct verbs_device *one, struct verbs_device **out, uint32_t max, uint32_t *count, int wanted_gid);
/* queries a device again that is not in use; sets d->usable and returns it */
int verbs_device_again(struct verbs_device *d, int wanted_gid);
/* Allocates the protection domain. The caller has made all checks that need no protection domain. */
int verbs_device_use(struct verbs_device *d);
bool verbs_port_up(struct verbs_device *d); /* asks the device now; a device that has vanished is not up */
/* Closes the device: frees its protection domain and context. The caller has destroyed queue pairs, regions and completion queues before.
   NULL allowed. */
void verbs_device_close(struct verbs_device *d);

/* --- guard.c: devices that a process of its own, the guard, owns and frees, whatever happens to this process --- */
/* Such devices offer UC and RC queue pairs, sends of one element, and completion queues with a channel, one channel for each queue. */
struct verbs_guard;
/* Start or join a guard. `command`: the command weft, looked up in PATH. `path` (NULL or "": none): the Unix socket of a guard of several
 * programs of this user. If no guard listens there, one is started, unless `command` is "". Programs with the same guard share the regions
 * and queue pairs of its devices. */
int verbs_guard_start(struct verbs_guard **out, const char *command, const char *path);
/* Shares memory with the guard, so that it can be registered there: the first `bytes` of the shared memory `fd` (from base_memory_fd()),
   which this process has mapped at `base`. The caller may close `fd` afterwards. */
int verbs_guard_share(struct verbs_guard *g, void *base, uint64_t bytes, int fd);
int verbs_guard_devices(struct verbs_guard *g, struct verbs_device **out, uint32_t *count, int wanted_gid); /* as verbs_devices() */
void verbs_guard_end(struct verbs_guard *g); /* closes all its devices, and returns when the guard process has ended; NULL allowed */
/* Runs the guard in this process, until the program at descriptor 0, a socket, has ended. `path`: a socket that the guard makes; then it
   runs until all programs that have connected to that socket have ended. Returns -EEXIST, after it was sent to descriptor 0, if another
   guard has that socket. */
int verbs_guard_serve(const char *path);

/* --- usage.c: how many objects of a device all processes use together --- */
struct verbs_usage {
    int64_t qps, pds, regions, cqs, srqs, contexts; /* -1: not known */
};
/* Reads the kernel's counts of these objects. -ENOTSUP, and all counts are -1: the system is not Linux, or the device has no kernel driver.
 */
int verbs_usage(const char *device, struct verbs_usage *out);

/* --- region.c --- */
#define VERBS_SEGMENT (UINT64_C(1) << 30)
/* A range of memory, registered as segments of which each is one region. The traits say how many regions there may be, and with which
   flags. */
struct verbs_regions {
    struct verbs_device *device;
    uint8_t *base;
    uint64_t bytes, segment_bytes; /* segment_bytes is a power of two */
    uint32_t segment_shift;        /* the logarithm of segment_bytes to base 2 */
    uint32_t count;
    int access; /* the access flags that the device accepted */
    struct ibv_mr **mr;
};
/* -ENOSPC if the memory needs more regions than `budget` (0: the limit in the traits); the error says how many, and what to do. */
int verbs_register(struct verbs_regions *out, struct verbs_device *d, void *base, uint64_t bytes, uint32_t budget);
/* As verbs_register(), for `bytes` at `offset` of a dmabuf, for example the memory of a GPU. Requests name this memory by addresses from
 * `base` on. `base` may be any address with the same offset in its page as `offset`. The caller may close `fd` afterwards. -EOPNOTSUPP: the
 * library, the device or its driver cannot register a dmabuf. */
int verbs_register_dmabuf(struct verbs_regions *out, struct verbs_device *d, int fd, uint64_t offset, void *base, uint64_t bytes,
                          uint32_t budget);
void verbs_unregister(struct verbs_regions *r);
static inline uint32_t verbs_lkey(const struct verbs_regions *r, uint64_t offset)
{
    return r->mr[offset >> r->segment_shift]->lkey;
}

/* --- cq.c: completion queues with a channel, whose descriptor does not block --- */
/* Makes a completion queue and its channel on a device that is in use. If it fails, it sets the error text, and the caller still calls
 * verbs_cq_destroy() to free what was made. */
int verbs_cq_create(struct ibv_cq **cq, struct ibv_comp_channel **channel, struct verbs_device *d, uint32_t entries);
/* *cq and *channel may be NULL; sets both to NULL */
void verbs_cq_destroy(struct ibv_cq **cq, struct ibv_comp_channel **channel, struct verbs_device *d);
/* takes the events that have come from the channel */
void verbs_cq_woken(struct ibv_comp_channel *channel, const struct verbs_device *d);

/* --- qp.c: queue pairs, in one place --- */
struct verbs_qp_options {
    enum ibv_qp_type type;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;             /* or NULL */
    uint32_t send_depth, recv_depth; /* asked; in the traits' unit */
    uint32_t sge, inline_bytes;
    bool signal_all;
};
/* The address of a queue pair. It is sent to the peer over the side connection in this form (all little-endian). */
struct verbs_address {
    uint8_t gid[16];
    uint32_t qpn, psn;
    uint16_t lid;
    uint8_t mtu, rd_atomic, global, port, gid_index, reserved;
    char device[32]; /* for error messages */
};
struct verbs_qp {
    struct verbs_device *device;
    struct ibv_qp *qp;
    struct verbs_address here;
    uint32_t send_depth, recv_depth, inline_bytes, sge; /* granted, read back from the queue pair */
    uint8_t timeout, retry, rnr_retry, rnr_timer;       /* before connect: 14, 7, 7, 12 unless changed */
};
/* Makes a queue pair and moves it to the state INIT. */
int verbs_qp_create(struct verbs_qp *out, struct verbs_device *d, const struct verbs_qp_options *options);
/* Moves a queue pair from INIT to RTR and RTS. If a step fails, the error text names device, port, GID and index of both sides, the errno,
 * and what usually causes it. */
int verbs_qp_connect(struct verbs_qp *q, const struct verbs_address *peer);
void verbs_qp_destroy(struct verbs_qp *q);
/* Whether an address from the peer is valid: port, MTU and numbers are in range. */
bool verbs_address_valid(const struct verbs_address *a);
/* Moves the queue pair to the error state: its requests end, and it takes nothing more from a shared receive queue. */
int verbs_qp_stop(struct verbs_qp *q);

/* --- srq.c: shared receive queues, whose receives have one element each --- */
/* Makes a queue of `depth` requests, or fewer if the device's limit is lower. -EOPNOTSUPP where the device or the system has no shared
   receive queues. */
int verbs_srq_create(struct ibv_srq **out, struct verbs_device *d, uint32_t depth);
void verbs_srq_destroy(struct verbs_device *d, struct ibv_srq *srq); /* NULL allowed; the caller has destroyed its queue pairs before */
int verbs_post_shared(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
