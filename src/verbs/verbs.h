/* SPDX-License-Identifier: MIT
 *
 * Devices, their traits, the choice of a GID, regions, queue pairs. All code that calls ibv_* is in this folder.
 *
 * libibverbs is loaded at run time (library.c), because weft also works without it, over shared memory. Code outside this folder decides by
 * a device's traits, not by the name of its vendor.
 */
#ifndef WEFT_VERBS_H
#define WEFT_VERBS_H

#include <infiniband/verbs.h>

#include "base/base.h"

/* Apple's header does not declare these structs. */
struct ibv_srq;
struct ibv_srq_init_attr;
struct ibv_gid_entry;

/* --- library.c: libibverbs or librdma, loaded at run time ---
 * ibv_post_send, ibv_post_recv, ibv_poll_cq and ibv_req_notify_cq are not in the table: they are inline functions. */
struct verbs_library {
    char path[256];
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr); /* fills an older, shorter struct */
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
    /* Set only for a guard's devices (guard.c), otherwise NULL: lists the processes that have queue pairs and regions of the device, and
     * how many each has. */
    void (*holders)(struct ibv_context *context, char *out, size_t len);
};
/* Loads the library when first called, and returns the table of its functions. Returns -ENOENT if the library cannot be loaded; the error
 * text says how to install it. If WEFT_VERBS_LIBRARY is set, it names the file to load. Any thread may call this. */
int verbs_load(const struct verbs_library **out);
/* Converts the result of a verb to a negative errno. Some verbs return the errno. Others return -1 or NULL, and set errno. For a verb that
 * returned NULL, pass 0 as `returned`. `thunderbolt`: also convert macOS's numbers, which a Thunderbolt device uses on any system. `raw`
 * (may be NULL) gets the original number. */
int verbs_code(int returned, bool thunderbolt, int *raw);
/* Returns text to append to an error message, such as ". The programs of its guard have: process 12 (name) 2 queue pairs and 1 regions"; ""
 * if lib->holders is NULL. */
const char *verbs_holders(const struct verbs_library *lib, struct ibv_context *context, char *out, size_t len);

/* --- traits.c --- */
enum verbs_link { VERBS_INFINIBAND, VERBS_ETHERNET, VERBS_THUNDERBOLT, VERBS_OTHER };

struct verbs_traits {
    enum verbs_link link;
    bool rc, uc, ud;                /* supported types of queue pair */
    bool write, read, srq;          /* RDMA write and read, shared receive queues */
    bool atomics, atomics_with_cpu; /* 64-bit atomics; atomics_with_cpu: atomic also with respect to this host's processors */
    bool dmabuf;
    bool acknowledges; /* true (RC): a completed send has arrived at the peer; false (UC): it has only left this device */
    uint32_t qps, pds, regions, cqs, cqe; /* limits; lower than the device reports, if that report is known to be wrong */
    uint64_t region_bytes;                /* the largest region that works; weft asks for at most 1 GiB in one region */
    uint64_t message_bytes;
    uint32_t depth, depth_unit_bytes; /* depth of a work queue; counts requests or, if depth_unit_bytes > 0, units of so many bytes */
    uint32_t srq_depth;               /* requests of a shared receive queue; 0: the device has no shared receive queues */
    uint32_t sge, inline_bytes, rd_atomic;
    uint32_t pkeys, gids;
    int access, access_else; /* flags for registration; if the device refuses `access`, access_else is tried, unless it is 0 */
    bool heap;               /* memory from malloc() can be registered, too */
    enum ibv_mtu mtu;
};
/* Computes the traits from the device's attributes and its transport type (ibv_device.transport_type). */
void verbs_traits_from(struct verbs_traits *out, int transport, const struct ibv_device_attr *device, const struct ibv_port_attr *port,
                       bool has_dmabuf);
/* Whether this host has a Thunderbolt device. Does not open any device. */
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
/* Chooses an entry of the GID table: IPv4-mapped addresses before others, RoCE v2 before v1, and of the addresses that are not IPv4-mapped
 * index 1 before others. InfiniBand uses index 0. `wanted` >= 0: take that index instead, or fail. Returns -EADDRNOTAVAIL if no entry is
 * usable. `device` and `interface` are for the error text. */
int verbs_choose_gid(struct verbs_choice *out, const struct verbs_gid *table, uint32_t count, int wanted, bool infiniband,
                     const char *device, const char *interface);
/* Writes the GID as text, such as "fe80::1", into `out` of at least 40 bytes. */
const char *verbs_gid_text(const union ibv_gid *gid, char *out, size_t len);

/* --- device.c --- */
#define VERBS_DEVICES_MAX 64u
struct verbs_device {
    const struct verbs_library *lib;
    struct ibv_context *context;
    struct ibv_pd *pd; /* NULL until verbs_device_use() */
    char name[64];
    char interface[32]; /* the network interface of the device, such as "en5"; "" if unknown */
    uint8_t port;
    struct ibv_device_attr attr;
    struct ibv_port_attr port_attr;
    struct verbs_traits traits;
    struct verbs_gid *gids; /* the GID table as read from the device; includes entries that are zero */
    uint32_t gid_count;
    struct verbs_choice chosen; /* valid when usable */
    int usable;                 /* 0, or a negative errno: why weft does not use the device */
    char why_not[960];          /* the error text for `usable` */
    double gbits;               /* speed of the active link; 0: unknown */
};
/* Opens and queries all devices, without allocating anything on them. `wanted_gid`: the GID index to use; -1: choose an index. Close the
 * devices with verbs_devices_close(). */
int verbs_devices(struct verbs_device **out, uint32_t *count, int wanted_gid);
/* As verbs_devices(), for the `given` devices in `list`. */
int verbs_devices_of(const struct verbs_library *lib, struct ibv_device **list, int given, struct verbs_device **out, uint32_t *count,
                     int wanted_gid);
void verbs_devices_close(struct verbs_device *devices, uint32_t count);
/* Opens the device with this name, or the fastest usable device if the name is NULL. Returns -ENODEV if there is none; the error text then
 * lists the devices of this host. */
int verbs_device_open(struct verbs_device **out, const char *name, int wanted_gid);
/* Opens up to `max` other devices or ports with the same speed, kind of link and operations as `one`. Close each with verbs_device_close().
 */
int verbs_devices_like(const struct verbs_device *one, struct verbs_device **out, uint32_t max, uint32_t *count, int wanted_gid);
/* Queries again a device that is not in use. Returns the new d->usable. */
int verbs_device_again(struct verbs_device *d, int wanted_gid);
/* Allocates the protection domain. Make all checks that need no protection domain before this call. */
int verbs_device_use(struct verbs_device *d);
bool verbs_port_up(struct verbs_device *d); /* queries the device's port; returns false if the port is down or the device has vanished */
/* Frees the device's protection domain and context. Destroy its queue pairs, regions and completion queues first. NULL is allowed. */
void verbs_device_close(struct verbs_device *d);

/* --- guard.c: devices that belong to a separate process, the guard, which frees their objects even if this process is killed --- */
/* These devices support UC and RC queue pairs, sends of one element, and completion queues with one channel each. */
struct verbs_guard;
/* Starts a guard, or connects to a running guard. `command`: the command weft, looked up in PATH; "": do not start a guard. `path`: the
 * Unix socket of a guard for several programs of this user; NULL or "": a guard for this program alone. */
int verbs_guard_start(struct verbs_guard **out, const char *command, const char *path);
/* Shares memory with the guard, so that this memory can be registered. `fd`: shared memory from base_memory_fd(), whose first `bytes` this
 * process has mapped at `base`. The caller may close `fd` afterwards. */
int verbs_guard_share(struct verbs_guard *g, void *base, uint64_t bytes, int fd);
int verbs_guard_devices(struct verbs_guard *g, struct verbs_device **out, uint32_t *count, int wanted_gid); /* as verbs_devices() */
void verbs_guard_end(struct verbs_guard *g); /* closes the guard's devices, and waits until the guard process has ended; NULL is allowed */
/* Makes this process a guard, and returns when all its programs have ended. The first program is connected to descriptor 0. `path`: a
 * socket for further programs, or NULL. If another guard has this socket, tells the program at descriptor 0 so, and returns -EEXIST. */
int verbs_guard_serve(const char *path);

/* --- usage.c: how many objects of a device all processes have together --- */
struct verbs_usage {
    int64_t qps, pds, regions, cqs, srqs, contexts; /* -1: not known */
};
/* Reads the kernel's counts of a device's objects. Returns -ENOTSUP if the system is not Linux, or the device has no kernel driver; then
 * all counts are -1. */
int verbs_usage(const char *device, struct verbs_usage *out);

/* --- region.c --- */
#define VERBS_SEGMENT (UINT64_C(1) << 30)
/* A range of memory, registered in segments. Each segment is one memory region. */
struct verbs_regions {
    struct verbs_device *device;
    uint8_t *base;
    uint64_t bytes, segment_bytes; /* segment_bytes is a power of two */
    uint32_t segment_shift;        /* log2 of segment_bytes */
    uint32_t count;
    int access; /* the access flags that the device accepted */
    struct ibv_mr **mr;
};
/* Returns -ENOSPC if the memory needs more regions than `budget` (0: the limit in the traits). */
int verbs_register(struct verbs_regions *out, struct verbs_device *d, void *base, uint64_t bytes, uint32_t budget);
/* As verbs_register(), for `bytes` at `offset` of a dmabuf, such as the memory of a GPU. In requests, this memory begins at the address
 * `base`, which must have the same offset in a page as `offset`. The caller may close `fd` afterwards. Returns -EOPNOTSUPP if dmabufs are
 * not supported. */
int verbs_register_dmabuf(struct verbs_regions *out, struct verbs_device *d, int fd, uint64_t offset, void *base, uint64_t bytes,
                          uint32_t budget);
void verbs_unregister(struct verbs_regions *r);
static inline uint32_t verbs_lkey(const struct verbs_regions *r, uint64_t offset)
{
    return r->mr[offset >> r->segment_shift]->lkey;
}

/* --- cq.c: completion queues, each with a channel whose descriptor does not block --- */
/* Makes a completion queue and its channel. If this fails, one of the two may exist; call verbs_cq_destroy() to free it. */
int verbs_cq_create(struct ibv_cq **cq, struct ibv_comp_channel **channel, struct verbs_device *d, uint32_t entries);
/* *cq and *channel may be NULL; sets both to NULL */
void verbs_cq_destroy(struct ibv_cq **cq, struct ibv_comp_channel **channel, struct verbs_device *d);
/* acknowledges all events that the channel has received */
void verbs_cq_woken(struct ibv_comp_channel *channel, const struct verbs_device *d);

/* --- qp.c: queue pairs --- */
struct verbs_qp_options {
    enum ibv_qp_type type;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;             /* or NULL */
    uint32_t send_depth, recv_depth; /* the depths to request, in the unit of the traits */
    uint32_t sge, inline_bytes;
    bool signal_all;
};
/* The address of a queue pair, in the form in which it is sent to the peer. All fields are little-endian. */
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
    uint8_t timeout, retry, rnr_retry, rnr_timer;       /* used by verbs_qp_connect(); 14, 7, 7, 12 unless the caller changes them */
};
/* Makes a queue pair and moves it to the state INIT. */
int verbs_qp_create(struct verbs_qp *out, struct verbs_device *d, const struct verbs_qp_options *options);
/* Moves a queue pair from INIT to RTR and RTS. If a step fails, the error text names both sides, the errno and its usual cause. */
int verbs_qp_connect(struct verbs_qp *q, const struct verbs_address *peer);
void verbs_qp_destroy(struct verbs_qp *q);
/* Whether the port, the MTU and the numbers of an address from the peer are in range. */
bool verbs_address_valid(const struct verbs_address *a);
/* Moves the queue pair to the error state. Its requests end, and the queue pair takes no more receives from a shared receive queue. */
int verbs_qp_stop(struct verbs_qp *q);

/* --- srq.c: shared receive queues; each receive has one element --- */
/* Makes a queue of `depth` requests, or fewer if the device's limit is lower. Returns -EOPNOTSUPP if the device or the system has no shared
 * receive queues. */
int verbs_srq_create(struct ibv_srq **out, struct verbs_device *d, uint32_t depth);
void verbs_srq_destroy(struct verbs_device *d, struct ibv_srq *srq); /* destroy its queue pairs first; NULL is allowed */
int verbs_post_shared(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
