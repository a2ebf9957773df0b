/* SPDX-License-Identifier: MIT
 *
 * The model of a fabric: the profile of its devices, and the topology that connects them.
 *
 * Both are plain data of fixed size. The command reads them from JSON (profile.c, topology.c), checks them, and copies them into the
 * fabric's file, from which the library reads them. So no program has to load a JSON parser. Files of other versions are refused: SF_MAGIC
 * and sf_layout() (fabric/shared.h) also cover these structures.
 */
#ifndef SOFTVERBS_MODEL_H
#define SOFTVERBS_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    SV_NAME = 32, /* bytes of a name of a profile, fabric, host or device, with its final 0 */
    SV_HOSTS = 256,
    SV_DEVICES = 1024,
    SV_GIDS = 16, /* maximum number of entries of a device's GID table */
    SV_STEPS = 8, /* maximum number of steps of depth_steps */
    SV_TEXT = 64,
};

/* The sizes of a fabric's tables (fabric/shared.h). No profile may have higher limits. */
enum {
    SV_FABRIC_PDS = 1 << 14,
    SV_FABRIC_MRS = 1 << 18,
    SV_FABRIC_CQS = 1 << 16,
    SV_FABRIC_QPS = 1 << 16,
    SV_FABRIC_SRQS = 1 << 14,
};

/* sv_profile.link_layer, as in ibv_port_attr. */
enum { SV_LINK_INFINIBAND = 1, SV_LINK_ETHERNET = 2 };
/* sv_profile.gid_type, as in ibv_gid_entry. */
enum { SV_GID_IB, SV_GID_ROCE_V1, SV_GID_ROCE_V2 };

/* Bits of sv_profile.transports: the supported types of queue pairs. */
enum { SV_RC = 1 << 0, SV_UC = 1 << 1, SV_UD = 1 << 2 };

/* Bits of sv_profile.operations: the supported requests, if verbs allow them for the type. */
enum {
    SV_OP_SEND = 1 << 0,
    SV_OP_SEND_IMM = 1 << 1,
    SV_OP_WRITE = 1 << 2,
    SV_OP_WRITE_IMM = 1 << 3,
    SV_OP_READ = 1 << 4,
    SV_OP_CAS = 1 << 5,
    SV_OP_FADD = 1 << 6,
};

/* What happens to a request beyond the depth of its queue. The depth counts frames if frame_bytes is set. */
enum sv_overdepth {
    SV_OVERDEPTH_REFUSE, /* refused with overdepth_errno */
    SV_OVERDEPTH_LOSE,   /* accepted, but never completes */
};

/* What happens when a region of 2^32 bytes or more is registered. */
enum sv_huge_region {
    SV_HUGE_WORKS,
    SV_HUGE_WRAPS,  /* registered, but offsets are taken modulo 2^32 */
    SV_HUGE_REFUSE, /* refused with huge_region_errno */
};

/* What ibv_post_recv() does when the cable of a connected queue pair is unplugged. */
enum sv_unplugged {
    SV_UNPLUGGED_STALLS,  /* succeeds, but nothing arrives */
    SV_UNPLUGGED_CRASHES, /* accesses unmapped memory: SIGSEGV */
};

/* Which kinds of memory can be registered: 0, or the errno of the refusal. lib/memory.c recognizes them. */
struct sv_memory_rules {
    int32_t mapping;      /* memory from mmap() */
    int32_t heap;         /* memory from malloc(), not at the start of a page */
    int32_t heap_aligned; /* memory from posix_memalign(), at the start of a page */
};

/* A profile. Counts are for one device. *_errno is the errno, or result, of a refused call. */
struct sv_profile {
    char name[SV_NAME];
    char summary[SV_TEXT * 2];

    /* Identity, as reported by queries. */
    char device_name[SV_NAME]; /* a pattern: {index} is the device's index on its host, {interface} its network interface */
    char firmware[SV_TEXT];
    uint32_t vendor_id, vendor_part, hardware_version;
    int32_t transport_type;             /* ibv_device.transport_type: 0 for InfiniBand and Ethernet devices, 100 for Thunderbolt */
    uint8_t link_layer;                 /* SV_LINK_* */
    uint8_t active_mtu;                 /* enum ibv_mtu: 5 = 4096 B */
    uint8_t active_speed, active_width; /* as in ibv_port_attr */
    uint8_t gid_type;                   /* the type of all GIDs: 0 IB, 1 RoCE v1, 2 RoCE v2 */
    uint8_t lid_base;                   /* the LID of the fabric's first device; the next devices have the next LIDs; 0 on Ethernet */
    uint16_t pkeys;                     /* entries of the P_Key table; the first is 0xffff */

    /* What a device supports. */
    uint32_t transports, operations;
    int32_t transport_errno; /* errno of ibv_create_qp() for an unsupported type */
    int32_t operation_errno; /* errno of posting an unsupported operation */
    uint8_t atomics;         /* enum ibv_atomic_cap */
    uint8_t inline_grows;    /* 1: grants more inline data than requested, in steps, up to max_inline */
    uint8_t dmabuf;          /* 1: ibv_reg_dmabuf_mr() is supported */

    /* Limits. max_*: as reported. real_*: as supported, if less. */
    uint32_t max_qp, real_qp;
    int32_t qp_errno;
    uint32_t max_pd, real_pd;
    int32_t pd_errno;
    uint32_t max_mr, real_mr;
    int32_t mr_errno;
    uint64_t max_mr_size, real_mr_size;
    int32_t mr_size_errno;
    uint32_t max_cq, max_cqe;
    int32_t cq_errno, cqe_errno;
    uint32_t max_srq, max_srq_wr, max_srq_sge;
    uint32_t max_ah;
    uint32_t max_qp_wr, max_sge, max_sge_rd, max_inline;
    uint32_t max_rd_atomic, max_res_rd_atomic;
    uint64_t max_message; /* maximum number of bytes of a message */
    int32_t message_errno;

    /* If frame_bytes is 0, the depth of a queue counts requests. Otherwise it counts frames of frame_bytes, and a requested depth is
     * rounded up to one of the depth steps, if there are any. */
    uint32_t frame_bytes;
    uint32_t depth_step_count;
    uint32_t depth_steps[SV_STEPS]; /* ascending; a queue gets the first one that is at least the requested depth */
    enum sv_overdepth overdepth;
    int32_t overdepth_errno;

    /* Data. */
    uint8_t credits; /* a SEND waits until the peer has posted a receive, on all types of queue pairs */
    /* a SEND and its receive must have the same number of frames; otherwise the receive fails with a local length error */
    uint8_t equal_frames;
    uint8_t receive_needs_rts; /* ibv_post_recv() before RTS is refused with receive_errno */
    uint8_t full_access;       /* a region must have local write, remote read and remote write, or is refused with access_errno */
    int32_t receive_errno, access_errno;
    /* frames in a million that are lost without an error, each with its message; if frame_bytes is 0: messages in a million */
    uint32_t loss_ppm;
    enum sv_huge_region huge_region;
    int32_t huge_region_errno;
    struct sv_memory_rules memory;

    /* Lifetime of objects. */
    uint8_t pd_leaks;           /* 1: a domain that a process has not freed stays allocated until `softverbs reboot` */
    uint8_t error_blocks_dereg; /* after a queue pair went to ERR, ibv_dereg_mr() fails with dereg_errno */
    uint8_t down_port_refuses_pd;
    enum sv_unplugged unplugged;
    int32_t dereg_errno, down_pd_errno;

    /* The transition INIT -> RTR. */
    int32_t bad_gid_errno;         /* errno for a GID that was never set, or that no port has */
    int32_t unreachable_gid_errno; /* errno for a port's GID that does not work on this link; 0: requests time out */
    uint8_t first_gid_unreachable; /* entry 0 (fe80:: from the MAC) does not work on any port */
    uint8_t private_gid;           /* the table also has the interface's second fe80:: address */
};

/* A device of a host. It has one port, number 1. */
struct sv_device_model {
    char name[SV_NAME]; /* as ibv_get_device_name() returns it */
    char interface[16]; /* its IP interface, such as "en3" */
    uint16_t host;      /* index into sv_topology.hosts */
    uint16_t gid_count;
    uint8_t mac[6];
    uint8_t port_up; /* state at the start */
    uint8_t reserved;
    int32_t cable; /* the device at the other end; SV_SWITCH; SV_NO_CABLE */
    uint64_t guid; /* in host order */
    struct sv_gid_model {
        uint8_t raw[16];
        uint8_t unreachable; /* 1: in the table, but does not work on this link */
        uint8_t reserved[7];
    } gids[SV_GIDS];
};
enum { SV_SWITCH = -1, SV_NO_CABLE = -2 };

struct sv_host_model {
    char name[SV_NAME];
    uint16_t first_device, device_count; /* the devices of a host have consecutive indices */
    uint32_t reserved;
};

struct sv_topology {
    char name[SV_NAME]; /* "switch 8", "ring 4", or the name in the file */
    uint32_t host_count, device_count;
    struct sv_host_model hosts[SV_HOSTS];
    struct sv_device_model devices[SV_DEVICES];
};

struct sv_model {
    struct sv_profile profile;
    struct sv_topology topology;
};

/* Functions return 0 or a negative errno, with an error text in `why`. They neither keep nor free their arguments. */
struct sv_why {
    char text[512];
};

/* Loads a built-in profile by name, or a file, if the argument has '/' or ".json" in it. */
int sv_profile_load(const char *name_or_path, struct sv_profile *, struct sv_why *);
int sv_profile_parse(const char *json, size_t bytes, const char *origin, struct sv_profile *, struct sv_why *);
/* The names of the built-in profiles, up to NULL. */
const char *const *sv_profile_names(void);

/* `word` is {"switch", "8"}, {"mesh", "4"}, {"ring", "4"}, {"chain", "4"}, or {"path.json"}. Names and GIDs follow the profile's rules. */
int sv_topology_load(int words, const char *const *word, const struct sv_profile *, struct sv_topology *, struct sv_why *);
int sv_topology_parse(const char *json, size_t bytes, const char *origin, const struct sv_profile *, struct sv_topology *, struct sv_why *);

/* A topology as malloc'ed text: JSON for sv_topology_parse(), or Graphviz dot. */
char *sv_topology_json(const struct sv_topology *);
char *sv_topology_dot(const struct sv_topology *);
/* MLX's hostfile with its matrix of devices, as malloc'ed text. *several counts the pairs of hosts with several cables, and has the first
 * such pair. NULL with errno ENXIO: no two hosts are connected. */
struct sv_several {
    uint32_t pairs, a, b;
};
char *sv_topology_matrix(const struct sv_topology *, struct sv_several *);
/* A profile as JSON for sv_profile_parse(). */
char *sv_profile_json(const struct sv_profile *);

#endif
