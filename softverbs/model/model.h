/* SPDX-License-Identifier: MIT
 *
 * The model of a fabric: the profile of its devices, and the topology that connects them.
 *
 * Both are plain data of fixed size. The command reads them from JSON (profile.c, topology.c), checks them and copies
 * them into the fabric's shared file; the library in the program reads them there and nowhere else, so that no program
 * has to load a JSON parser. A fabric's file is not read by another version: SF_MAGIC and sf_layout() (fabric/shared.h)
 * also cover the layout of these structures.
 */
#ifndef SOFTVERBS_MODEL_H
#define SOFTVERBS_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    SV_NAME = 32,      /* of a profile, fabric, host or device, with its closing 0 */
    SV_HOSTS = 256,    /* of one fabric */
    SV_DEVICES = 1024, /* of one fabric */
    SV_GIDS = 16,      /* of one device's table */
    SV_STEPS = 8,      /* of a table of granted depths */
    SV_TEXT = 64,
};

/* What one fabric has room for: the sizes of its tables (fabric/shared.h). No profile promises more for a device. */
enum {
    SV_FABRIC_PDS = 1 << 14,
    SV_FABRIC_MRS = 1 << 18,
    SV_FABRIC_CQS = 1 << 16,
    SV_FABRIC_QPS = 1 << 16,
    SV_FABRIC_SRQS = 1 << 14,
};

/* sv_profile.link_layer, as ibv_port_attr has it. */
enum { SV_LINK_INFINIBAND = 1, SV_LINK_ETHERNET = 2 };
/* sv_profile.gid_type, as ibv_gid_entry has it. */
enum { SV_GID_IB, SV_GID_ROCE_V1, SV_GID_ROCE_V2 };

/* Bits of sv_profile.transports: which kinds of queue pair can be made. */
enum { SV_RC = 1 << 0, SV_UC = 1 << 1, SV_UD = 1 << 2 };

/* Bits of sv_profile.operations: which requests a send queue takes, beyond the verbs' own rule for each kind. */
enum {
    SV_OP_SEND = 1 << 0,
    SV_OP_SEND_IMM = 1 << 1,
    SV_OP_WRITE = 1 << 2,
    SV_OP_WRITE_IMM = 1 << 3,
    SV_OP_READ = 1 << 4,
    SV_OP_CAS = 1 << 5,
    SV_OP_FADD = 1 << 6,
};

/* What happens to a request beyond the depth of its queue (counted in frames if frame_bytes is set). */
enum sv_overdepth {
    SV_OVERDEPTH_REFUSE, /* the request is refused: errno overdepth_errno */
    SV_OVERDEPTH_LOSE,   /* it is accepted, and never completes */
};

/* What happens with a region of 2^32 bytes or more. */
enum sv_huge_region {
    SV_HUGE_WORKS,
    SV_HUGE_WRAPS,  /* registers; data for an offset beyond 2^32 goes to the offset modulo 2^32 */
    SV_HUGE_REFUSE, /* errno huge_region_errno */
};

/* What ibv_post_recv does after the cable of a connected queue pair was pulled. */
enum sv_unplugged {
    SV_UNPLUGGED_STALLS,  /* nothing arrives */
    SV_UNPLUGGED_CRASHES, /* accesses unmapped memory: SIGSEGV */
};

/* Which memory registers. Told apart by looking at the mapping (lib/memory.c). Each 0, or the errno of a refusal. */
struct sv_memory_rules {
    int32_t mapping;      /* of mmap */
    int32_t heap;         /* of malloc: not at a page's start */
    int32_t heap_aligned; /* of posix_memalign, at a page's start */
};

/* A profile. Counts are for one device. *_errno: what the refused call leaves in errno (or returns). */
struct sv_profile {
    char name[SV_NAME];
    char summary[SV_TEXT * 2];

    /* Identity, as the queries tell it. */
    char device_name[SV_NAME]; /* pattern: {index} of the device at its host, {interface} of the host's network */
    char firmware[SV_TEXT];
    uint32_t vendor_id, vendor_part, hardware_version;
    int32_t transport_type;             /* ibv_device.transport_type: 0 InfiniBand and its kin, 100 Thunderbolt */
    uint8_t link_layer;                 /* SV_LINK_* */
    uint8_t active_mtu;                 /* enum ibv_mtu: 5 = 4096 B */
    uint8_t active_speed, active_width; /* as ibv_port_attr has them */
    uint8_t gid_type;                   /* of the table's entries: 0 IB, 1 RoCE v1, 2 RoCE v2 */
    uint8_t lid_base;                   /* LID of the fabric's first device, the next has the next; 0 on Ethernet, which has none */
    uint16_t pkeys;                     /* entries of the pkey table; the first is 0xffff */

    /* What a device can do. */
    uint32_t transports, operations;
    int32_t transport_errno; /* of ibv_create_qp for a kind that is not there */
    int32_t operation_errno; /* of a post of an operation that is not there */
    uint8_t atomics;         /* enum ibv_atomic_cap */
    uint8_t inline_grows;    /* 1: more inline than asked is granted, in steps, up to max_inline */
    uint8_t dmabuf;          /* ibv_reg_dmabuf_mr works */

    /* Limits: what the query says (max_*) and, where a device lies about itself, what it really does (real_*). */
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
    uint64_t max_message; /* bytes of one message */
    int32_t message_errno;

    /* Depth. frame_bytes 0: requests are counted. Else frames of that size, and asked depths are rounded up to a step. */
    uint32_t frame_bytes;
    uint32_t depth_step_count;
    uint32_t depth_steps[SV_STEPS]; /* ascending; granted is the first that is at least what was asked */
    enum sv_overdepth overdepth;
    int32_t overdepth_errno;

    /* The data path. */
    uint8_t credits;           /* a SEND waits until the peer has posted a receive (not only on RC) */
    uint8_t equal_frames;      /* a SEND and the RECV it meets must cover as many frames, else local length error at the receiver */
    uint8_t receive_needs_rts; /* ibv_post_recv before RTS is refused: receive_errno */
    uint8_t full_access;       /* a region needs local write, remote read and remote write all: access_errno */
    int32_t receive_errno, access_errno;
    uint32_t loss_ppm; /* of frames, in a million, lost without a word, and their messages with them; of messages where frame_bytes is 0 */
    enum sv_huge_region huge_region;
    int32_t huge_region_errno;
    struct sv_memory_rules memory;

    /* Life and death. */
    uint8_t pd_leaks;           /* a domain whose process ended without freeing it stays until `softverbs reboot` */
    uint8_t error_blocks_dereg; /* after a queue pair went to ERR, ibv_dereg_mr fails: dereg_errno */
    uint8_t down_port_refuses_pd;
    enum sv_unplugged unplugged;
    int32_t dereg_errno, down_pd_errno;

    /* INIT -> RTR. */
    int32_t bad_gid_errno;         /* a GID that was never set, or is of no port */
    int32_t unreachable_gid_errno; /* a real one that this link does not reach; 0: found out by the data's time-out */
    uint8_t first_gid_unreachable; /* entry 0 (fe80:: from the MAC) is of that kind on every port */
    uint8_t private_gid;           /* the table has the interface's other fe80:: address too */
};

/* One device of a host: one port, number 1. */
struct sv_device_model {
    char name[SV_NAME]; /* as ibv_get_device_name tells it */
    char interface[16]; /* the IP interface it belongs to: "en3" */
    uint16_t host;      /* index into sv_topology.hosts */
    uint16_t gid_count;
    uint8_t mac[6];
    uint8_t port_up; /* at the start */
    uint8_t reserved;
    int32_t cable; /* the device at the other end; SV_SWITCH; SV_NO_CABLE */
    uint64_t guid; /* in host order */
    struct sv_gid_model {
        uint8_t raw[16];
        uint8_t unreachable; /* is in the table, and does not work on this link */
        uint8_t reserved[7];
    } gids[SV_GIDS];
};
enum { SV_SWITCH = -1, SV_NO_CABLE = -2 };

struct sv_host_model {
    char name[SV_NAME];
    uint16_t first_device, device_count; /* a host's devices lie together */
    uint32_t reserved;
};

struct sv_topology {
    char name[SV_NAME]; /* "switch 8", "ring 4", or the file's own */
    uint32_t host_count, device_count;
    struct sv_host_model hosts[SV_HOSTS];
    struct sv_device_model devices[SV_DEVICES];
};

struct sv_model {
    struct sv_profile profile;
    struct sv_topology topology;
};

/*
 * Errors are 0 or a negative errno, with a sentence in `why` (what, where in the file, why, what would be right).
 * None keeps or frees what it is given.
 */
struct sv_why {
    char text[512];
};

/* A profile by name (built in: looked up in the library's own table) or, with a '/' or ".json" in it, by path. */
int sv_profile_load(const char *name_or_path, struct sv_profile *, struct sv_why *);
int sv_profile_parse(const char *json, size_t bytes, const char *origin, struct sv_profile *, struct sv_why *);
/* Names of the built-in profiles, NULL at the end. */
const char *const *sv_profile_names(void);

/* words: {"switch", "8"}, {"mesh", "4"}, {"ring", "4"}, {"chain", "4"}, or {"path.json"}. Names and GIDs follow the profile's rules. */
int sv_topology_load(int words, const char *const *word, const struct sv_profile *, struct sv_topology *, struct sv_why *);
int sv_topology_parse(const char *json, size_t bytes, const char *origin, const struct sv_profile *, struct sv_topology *, struct sv_why *);

/* A malloc'ed text: the topology as JSON that sv_topology_parse takes back to the same, or as Graphviz dot. */
char *sv_topology_json(const struct sv_topology *);
char *sv_topology_dot(const struct sv_topology *);
/* The same kind of text: MLX's hostfile with its matrix of devices, and, of pairs with several cables between them, how many there
 * are and the first two hosts. NULL with errno ENXIO: nothing joins any two hosts. */
struct sv_several {
    uint32_t pairs, a, b;
};
char *sv_topology_matrix(const struct sv_topology *, struct sv_several *);
/* The profile as JSON that sv_profile_parse takes back to the same. */
char *sv_profile_json(const struct sv_profile *);

#endif
