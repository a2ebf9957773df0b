/* SPDX-License-Identifier: MIT
 *
 * The keys of a profile. Ranges are limited by the sizes of a fabric's tables (SV_FABRIC_*), and by the fields of verbs.
 */
#include "keys.h"

#include <inttypes.h>
#include <stdio.h>

static const struct sv_word link_layers[] = {{"infiniband", 1}, {"ethernet", 2}, {NULL, 0}};
static const struct sv_word gid_types[] = {{"ib", 0}, {"roce_v1", 1}, {"roce_v2", 2}, {NULL, 0}};
static const struct sv_word atomic_caps[] = {{"none", 0}, {"hca", 1}, {"global", 2}, {NULL, 0}};
static const struct sv_word transports[] = {{"rc", SV_RC}, {"uc", SV_UC}, {"ud", SV_UD}, {NULL, 0}};
static const struct sv_word operations[] = {
    {"send", SV_OP_SEND}, {"send_imm", SV_OP_SEND_IMM}, {"write", SV_OP_WRITE},    {"write_imm", SV_OP_WRITE_IMM},
    {"read", SV_OP_READ}, {"compare_swap", SV_OP_CAS},  {"fetch_add", SV_OP_FADD}, {NULL, 0},
};
static const struct sv_word overdepths[] = {{"refuse", SV_OVERDEPTH_REFUSE}, {"lose", SV_OVERDEPTH_LOSE}, {NULL, 0}};
static const struct sv_word huge_regions[] = {{"works", SV_HUGE_WORKS}, {"wraps", SV_HUGE_WRAPS}, {"refuse", SV_HUGE_REFUSE}, {NULL, 0}};
static const struct sv_word unpluggeds[] = {{"stalls", SV_UNPLUGGED_STALLS}, {"crashes", SV_UNPLUGGED_CRASHES}, {NULL, 0}};

#define FIELD(f) offsetof(struct sv_profile, f), sizeof(((struct sv_profile *)0)->f)
/* clang-format off */
#define TEXT(group, f, meaning) {group, #f, SV_KEY_TEXT, FIELD(f), 0, 0, NULL, meaning}
#define NUMBER(group, f, least, most, meaning) {group, #f, SV_KEY_NUMBER, FIELD(f), least, most, NULL, meaning}
#define ERRNO(group, f, meaning) NUMBER(group, f, 0, 4095, meaning)
#define FLAG(group, f, meaning) {group, #f, SV_KEY_FLAG, FIELD(f), 0, 1, NULL, meaning}
#define WORD(group, f, words, meaning) {group, #f, SV_KEY_WORD, FIELD(f), 0, 0, words, meaning}
#define WORDS(group, f, words, meaning) {group, #f, SV_KEY_WORDS, FIELD(f), 0, 0, words, meaning}
#define MEMORY(f, meaning) {"memory", #f, SV_KEY_NUMBER, FIELD(memory.f), 0, 4095, NULL, meaning}
/* clang-format on */

/* Limits are at most SV_FABRIC_* - 1, because entry 0 of each table is not used. */
const struct sv_key sv_keys[] = {
    TEXT("", name, "name of the profile, as messages print it"),
    TEXT("", summary, "one sentence about it"),

    TEXT("device", device_name, "name of a device: {index} is its number on its host, {interface} its network interface"),
    TEXT("device", firmware, "`fw_ver`"),
    NUMBER("device", vendor_id, 0, UINT32_MAX, "`vendor_id`"),
    NUMBER("device", vendor_part, 0, UINT32_MAX, "`vendor_part_id`"),
    NUMBER("device", hardware_version, 0, UINT32_MAX, "`hw_ver`"),
    NUMBER("device", transport_type, 0, 255, "`transport_type` of `struct ibv_device`: 0 InfiniBand and RoCE, 100 Thunderbolt"),
    WORD("device", link_layer, link_layers, "`link_layer` of the port"),
    NUMBER("device", active_mtu, 1, 5, "`active_mtu` of the port: 1 is 256 bytes, 2 512, 3 1024, 4 2048, 5 4096"),
    NUMBER("device", active_speed, 1, 128, "`active_speed` of a lane: 4 is 10 Gb/s, 32 25 Gb/s, 64 50 Gb/s"),
    NUMBER("device", active_width, 1, 16, "`active_width`, lanes: 1 is one, 16 two, 2 four, 4 eight, 8 twelve"),
    WORD("device", gid_type, gid_types, "type of the GID table's entries"),
    NUMBER(
        "device", lid_base, 0, 255,
        "LID of the fabric's first device; the following devices have the following LIDs. 0 with link layer ethernet, which has no LIDs"),
    NUMBER("device", pkeys, 1, 128, "entries of the P_Key table; the first is 0xffff, the others are empty"),

    WORDS("can", transports, transports, "kinds of queue pair"),
    ERRNO("can", transport_errno, "errno of `ibv_create_qp` for a kind of queue pair that the device does not have"),
    WORDS("can", operations, operations, "requests that a send queue accepts, if the kind of queue pair has them"),
    ERRNO("can", operation_errno, "errno of posting a request that the device does not support"),
    WORD("can", atomics, atomic_caps, "`atomic_cap`"),
    FLAG("can", inline_grows, "more inline data than requested is granted if the slot has room, up to `max_inline`"),
    FLAG("can", dmabuf, "`ibv_reg_dmabuf_mr` works"),

    NUMBER("limits", max_qp, 0, SV_FABRIC_QPS - 1, "queue pairs of a device, as the query reports"),
    NUMBER("limits", real_qp, 0, SV_FABRIC_QPS - 1, "queue pairs that can really be created"),
    ERRNO("limits", qp_errno, "errno of creating one more queue pair"),
    NUMBER("limits", max_pd, 1, SV_FABRIC_PDS - 1, "protection domains of a device, as the query reports"),
    NUMBER("limits", real_pd, 1, SV_FABRIC_PDS - 1, "protection domains that can really be allocated"),
    ERRNO("limits", pd_errno, "errno of allocating one more protection domain"),
    NUMBER("limits", max_mr, 1, SV_FABRIC_MRS - 1, "memory regions of a device, as the query reports"),
    NUMBER("limits", real_mr, 1, SV_FABRIC_MRS - 1, "memory regions that can really be registered"),
    ERRNO("limits", mr_errno, "errno of registering one more region"),
    NUMBER("limits", max_mr_size, 1, INT64_MAX, "bytes of one region, as the query reports"),
    NUMBER("limits", real_mr_size, 1, INT64_MAX, "bytes that can really be registered as one region (see also `memory.huge_region`)"),
    ERRNO("limits", mr_size_errno, "errno of registering a larger region"),
    NUMBER("limits", max_cq, 1, SV_FABRIC_CQS - 1, "completion queues of a device"),
    ERRNO("limits", cq_errno, "errno of creating one more completion queue"),
    NUMBER("limits", max_cqe, 1, (1 << 22) - 1, "entries of a completion queue"),
    ERRNO("limits", cqe_errno, "errno of creating a completion queue with more entries"),
    NUMBER("limits", max_srq, 0, SV_FABRIC_SRQS - 1, "shared receive queues of a device; 0: the device has none"),
    NUMBER("limits", max_srq_wr, 0, 1 << 20, "requests of a shared receive queue"),
    NUMBER("limits", max_srq_sge, 0, 256, "scatter/gather elements of a request in a shared receive queue"),
    NUMBER("limits", max_ah, 0, INT32_MAX, "address handles of a device"),
    NUMBER("limits", max_qp_wr, 1, 1 << 20, "requests of a send or receive queue; if `depth.frame_bytes` is set, frames"),
    NUMBER("limits", max_sge, 1, 256, "scatter/gather elements of one request"),
    NUMBER("limits", max_sge_rd, 0, 256, "scatter/gather elements of one READ"),
    NUMBER("limits", max_inline, 0, 4096, "bytes of inline data"),
    NUMBER("limits", max_rd_atomic, 0, 255, "READs and atomics of a queue pair in flight, as initiator and as target"),
    NUMBER("limits", max_res_rd_atomic, 0, INT32_MAX, "READs and atomics in flight as target, for all queue pairs of a device together"),
    NUMBER("limits", max_message, 1, UINT64_C(1) << 31, "bytes of one message"),
    ERRNO("limits", message_errno, "errno of posting a longer message"),

    NUMBER("depth", frame_bytes, 0, 1 << 20, "0: the depth of queues counts requests. Else it counts frames of this size (a power of two)"),
    {"depth", "depth_steps", SV_KEY_STEPS, FIELD(depth_steps), 1, 1 << 20, NULL,
     "depths, in frames, that are granted: the first that is at least the depth requested; empty: the depth requested"},
    WORD("depth", overdepth, overdepths, "a request beyond the depth is refused, or accepted and lost"),
    ERRNO("depth", overdepth_errno, "errno of posting a request beyond the depth, if that is refused"),

    FLAG("data", credits, "a SEND waits until the peer has posted a receive, also on UC"),
    FLAG("data", equal_frames,
         "a SEND and its receive must have the same number of frames, else the receive ends with a local length error"),
    FLAG("data", receive_needs_rts, "receives can be posted in state RTS only"),
    ERRNO("data", receive_errno, "errno of posting a receive before RTS"),
    NUMBER(
        "data", loss_ppm, 0, 1000000,
        "frames in a million that are lost silently, each together with its message; if `depth.frame_bytes` is 0, messages in a million"),

    WORD("memory", huge_region, huge_regions,
         "a region of 2^32 bytes or more works; or registers and its offsets wrap at 2^32; or is refused"),
    ERRNO("memory", huge_region_errno, "errno of registering a region of 2^32 bytes or more, if that is refused"),
    FLAG("memory", full_access, "a region must have local write, remote read and remote write access"),
    ERRNO("memory", access_errno, "errno of registering a region without one of these access rights"),
    MEMORY(mapping, "memory from `mmap`: 0 if it registers, else the errno of the refusal"),
    MEMORY(heap, "memory from `malloc`, not page-aligned: 0 if it registers, else the errno"),
    MEMORY(heap_aligned, "page-aligned memory from `posix_memalign`: 0 if it registers, else the errno"),

    FLAG("life", pd_leaks, "a protection domain whose process ended without freeing it stays until `softverbs reboot`"),
    FLAG("life", error_blocks_dereg, "once a queue pair of the device has gone to the error state, `ibv_dereg_mr` fails"),
    ERRNO("life", dereg_errno, "errno of `ibv_dereg_mr` after such an error"),
    FLAG("life", down_port_refuses_pd, "a device whose port is down can be opened, but `ibv_alloc_pd` fails"),
    ERRNO("life", down_pd_errno, "errno of `ibv_alloc_pd` while the port is down"),
    WORD("life", unplugged, unpluggeds, "`ibv_post_recv` after the cable was pulled: nothing arrives, or the program gets SIGSEGV"),

    FLAG("gids", private_gid, "the GID table also has the interface's other fe80:: address"),
    FLAG("gids", first_gid_unreachable, "entry 0 is in the GID table, but does not work"),
    ERRNO("gids", bad_gid_errno, "errno of INIT to RTR with a GID that was never set, or that no port has"),
    ERRNO("gids", unreachable_gid_errno,
          "errno of INIT to RTR with a GID that this link does not reach; 0: the call succeeds, and data is lost"),
};
const size_t sv_key_count = sizeof sv_keys / sizeof sv_keys[0];

void sv_key_allowed(const struct sv_key *k, char *text, size_t bytes)
{
    size_t n = 0;
    switch (k->type) {
    case SV_KEY_TEXT: snprintf(text, bytes, "a string of at most %zu bytes", k->bytes - 1); break;
    case SV_KEY_NUMBER: snprintf(text, bytes, "a number from %" PRIu64 " to %" PRIu64, k->least, k->most); break;
    case SV_KEY_FLAG: snprintf(text, bytes, "true or false"); break;
    case SV_KEY_STEPS:
        snprintf(text, bytes, "an array of at most %d ascending numbers from %" PRIu64 " to %" PRIu64, SV_STEPS, k->least, k->most);
        break;
    case SV_KEY_WORD:
    case SV_KEY_WORDS:
        n = (size_t)snprintf(text, bytes, k->type == SV_KEY_WORD ? "one of" : "an array of");
        for (const struct sv_word *w = k->words; w->name && n < bytes; w++)
            n += (size_t)snprintf(text + n, bytes - n, "%s \"%s\"", w == k->words ? "" : ",", w->name);
        break;
    }
}
