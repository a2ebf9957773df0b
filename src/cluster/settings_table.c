/* SPDX-License-Identifier: MIT
 *
 * The table of all settings: name, variable, type, range, default and help.
 */
#include "cluster/settings.h"

#include <stddef.h>
#include <string.h>

_Static_assert(COUNT <= CLUSTER_SETTINGS_MAX, "rows for `weft config`");

/* The member of struct cluster_settings that gets the value. */
#define INTO(member) .into = offsetof(struct cluster_settings, member), .into_bytes = sizeof((struct cluster_settings *)0)->member

#define NODES     ((int64_t)WEFT_MAX_NODES)
#define LONG_TIME (1000 * 3600 * WEFT_SECOND)

const struct setting settings_table[COUNT] = {
    [RANK] = {.name = "rank",
              .variable = "WEFT_RANK",
              .also = {"JACCL_RANK", "MLX_RANK"},
              .fallback = "0",
              .kind = NUMBER,
              .max = NODES - 1,
              .help = "the number of this node, from 0 on; needed in a cluster of several nodes, unless PMIx tells it"},
    [SIZE] = {.name = "size",
              .variable = "WEFT_SIZE",
              .fallback = "1",
              .kind = NUMBER,
              .min = 1,
              .max = NODES,
              .help = "the number of nodes, 1 to 1024; default: as in the hostfile, or as PMIx tells"},
    [COORD] = {.name = "coord",
               .variable = "WEFT_COORD",
               .also = {"JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"},
               .fallback = "",
               .kind = ADDRESS,
               .help =
                   "where node 0 listens: HOST:PORT, unix:PATH or unix:@NAME; default: the first host of the hostfile, or as PMIx tells"},
    [GROW] = {INTO(grow), .name = "grow", .variable = "WEFT_GROW", .fallback = "", .kind = ADDRESSES, .in_hostfile = true,
              .help = "an address of this host where other nodes may join later: HOST:PORT or unix:@NAME"},
    [JOIN] = {INTO(join), .name = "join", .variable = "WEFT_JOIN", .fallback = "", .kind = ADDRESSES,
              .help = "join a running cluster at one of these addresses (WEFT_GROW of its nodes), with commas between"},
    [HOSTFILE] = {.name = "hostfile",
                  .variable = "WEFT_HOSTFILE",
                  .also = {"MLX_HOSTFILE", "JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"},
                  .fallback = "",
                  .kind = PATH,
                  .help = "a file that lists the hosts (JSON of weft or of MLX)"},
    [PMIX_LIBRARY] = {.name = "pmix_library",
                      .variable = "WEFT_PMIX_LIBRARY",
                      .fallback = "",
                      .kind = PATH,
                      .help = "the PMIx library, under mpirun and srun; default: libpmix.so.2, on macOS libpmix.2.dylib"},
    [SECRET_TEXT] = {.name = "secret",
                     .variable = "WEFT_SECRET",
                     .fallback = "",
                     .kind = SECRET,
                     .help = "the secret that a node must know to join, 1 to 1024 bytes; WEFT_SECRET_FILE is safer"},
    [SECRET_FILE] = {.name = "secret_file",
                     .variable = "WEFT_SECRET_FILE",
                     .fallback = "",
                     .kind = PATH,
                     .in_hostfile = true,
                     .help = "a file with the secret, to which only its owner has access"},
    [TRANSPORT] = {INTO(fabric.transport), .name = "transport", .variable = "WEFT_TRANSPORT", .fallback = "", .kind = CHOICE,
                   .choices = "shm|rc|tb|ofi|rdma", .in_hostfile = true,
                   .help = "use only this way to other nodes: shm, rc, tb, ofi or rdma (rc or tb); default: the best for each node"},
    [COPY_THREADS] = {INTO(fabric.copy_threads), .name = "copy_threads", .variable = "WEFT_COPY_THREADS", .fallback = "0", .kind = NUMBER,
                      .max = FAB_COPY_THREADS_MAX, .in_hostfile = true,
                      .help = "shm: how many threads copy data of 4 MiB or more, 1 to 16; 0: by the number of processors, at most 6"},
    [VERBS_LIBRARY] = {.name = "verbs_library",
                       .variable = "WEFT_VERBS_LIBRARY",
                       .fallback = "",
                       .kind = PATH,
                       .help = "the library for RDMA devices; default: libibverbs.so.1, on macOS librdma.dylib"},
    [DEVICE] = {INTO(fabric.device), .name = "device", .variable = "WEFT_DEVICE", .fallback = "", .kind = PATH, .in_hostfile = true,
                .help = "the RDMA device to use, as `weft devices` names it; default: the best"},
    [RAILS] = {.name = "rails",
               .variable = "WEFT_RAILS",
               .fallback = "",
               .kind = RAIL_LIST,
               .in_hostfile = true,
               .help = "rc: how many devices to use together, 1 to 4, or which: NAME,NAME; default: WEFT_DEVICE, or all that are as fast "
                       "as the best"},
    /* A put over several devices ends with a read that proves the arrival of each piece: a round trip of a few microseconds. At 200 Gbit/s,
     * spreading 256 KiB over two devices saves at least this time. Over softverbs, spreading saves nothing, but from 256 KiB on it also
     * costs nothing measurable. */
    [STRIPE] = {INTO(fabric.stripe_bytes), .name = "stripe", .variable = "WEFT_STRIPE", .fallback = "256K", .kind = BYTES, .min = 32 << 10,
                .max = INT64_C(1) << 40, .in_hostfile = true,
                .help = "rc: reads and writes of this size or more use all devices of WEFT_RAILS"},
    [GPU_RDMA] = {INTO(fabric.gpu_rdma), .name = "gpu_rdma", .variable = "WEFT_GPU_RDMA", .fallback = "yes", .kind = FLAG,
                  .in_hostfile = true,
                  .help = "rc: RDMA devices access the memory of GPUs directly, where this is possible; no: copy it through the pool"},
    [GID_INDEX] = {INTO(fabric.gid_index), .name = "gid_index", .variable = "WEFT_GID_INDEX", .fallback = "-1", .kind = NUMBER, .min = -1,
                   .max = 255, .in_hostfile = true,
                   .help = "which address of a device to use: the index in its GID table; -1: weft chooses"},
    [GUARD] = {INTO(fabric.guard), .name = "guard", .variable = "WEFT_GUARD", .fallback = "", .kind = PATH,
               .help = "tb: the path of the command weft, to start a guard: a process that owns the devices instead of the node"},
    [GUARD_SOCKET] = {INTO(fabric.guard_socket), .name = "guard_socket", .variable = "WEFT_GUARD_SOCKET", .fallback = "", .kind = PATH,
                      .help = "tb: the absolute path of a Unix socket; programs with the same path share one guard"},
    /* The first lane is for small messages and the ends of transfers. There are two lanes for large data, so that one can transfer while
     * the other recovers from a loss. Between Macs, 16 messages of 128 KiB were the fastest without losses. More messages in flight cause
     * more losses when a port falls behind. */
    [TB_LANES] = {.name = "tb_lanes",
                  .variable = "WEFT_TB_LANES",
                  .fallback = "32K:32,128K:16,128K:16",
                  .kind = LANES,
                  .in_hostfile = true,
                  .help = "tb: how much large data may be on its way, as SIZE:MESSAGES,...; `weft probe link` proposes a value"},
    /* The default checks every byte, because these links are known to corrupt data without reporting an error. */
    [TB_CHECK] = {.name = "tb_check",
                  .variable = "WEFT_TB_CHECK",
                  .fallback = "full",
                  .kind = CHOICE,
                  .choices = "full|frames",
                  .in_hostfile = true,
                  .help = "tb: check every byte of large data (full), or 64 of each 4096 bytes (frames), which is faster but finds less"},
    [OFI_LIBRARY] = {.name = "ofi_library",
                     .variable = "WEFT_OFI_LIBRARY",
                     .fallback = "",
                     .kind = PATH,
                     .help = "ofi: the library libfabric; default: libfabric.so.1, on macOS libfabric.1.dylib"},
    [OFI_PROVIDER] = {INTO(fabric.ofi_provider), .name = "ofi_provider", .variable = "WEFT_OFI_PROVIDER", .fallback = "", .kind = PATH,
                      .in_hostfile = true,
                      .help = "ofi: the providers of libfabric to use, the best first, with commas between; default: weft's own order"},
    [OFI_INTERFACE] = {INTO(fabric.ofi_interface), .name = "ofi_interface", .variable = "WEFT_OFI_INTERFACE", .fallback = "", .kind = PATH,
                       .in_hostfile = true,
                       .help = "ofi: the network interface to use, or one of its addresses; default: the one by which the node joins"},
    [POOL] = {INTO(pool.bytes), .name = "pool", .variable = "WEFT_POOL", .fallback = "256M", .kind = BYTES, .min = 1 << 20,
              .max = (int64_t)WEFT_MAX_POOL_BYTES, .in_hostfile = true,
              .help = "memory that this node shares with the cluster, at least 1M"},
    [POOL_HUGE] = {INTO(pool.huge), .name = "pool_huge", .variable = "WEFT_POOL_HUGE", .fallback = "no", .kind = FLAG, .in_hostfile = true,
                   .help = "use huge pages for the pool"},
    [POOL_LOCK] = {INTO(pool.lock), .name = "pool_lock", .variable = "WEFT_POOL_LOCK", .fallback = "no", .kind = FLAG, .in_hostfile = true,
                   .help = "lock the pool in memory"},
    [POOL_PREFAULT] = {INTO(pool.prefault), .name = "pool_prefault", .variable = "WEFT_POOL_PREFAULT", .fallback = "no", .kind = FLAG,
                       .in_hostfile = true, .help = "take all memory of the pool from the host at the start"},
    [DEADLINE] = {INTO(fabric.deadline_ns), .name = "deadline", .variable = "WEFT_DEADLINE", .fallback = "30s", .kind = DURATION,
                  .min = WEFT_MS, .max = LONG_TIME, .in_hostfile = true,
                  .help =
                      "how long an operation may take that was given no time-out; if set, it also limits waits at barriers and for locks"},
    [SAY_AFTER] = {INTO(fabric.say_after_ns), .name = "say_after", .variable = "WEFT_SAY_AFTER", .fallback = "30s", .kind = DURATION,
                   .min = WEFT_MS, .max = LONG_TIME, .in_hostfile = true,
                   .help = "after this time, a wait without a time-out prints for which nodes it waits"},
    [JOIN_TIMEOUT] = {INTO(join_timeout_ns), .name = "join_timeout", .variable = "WEFT_JOIN_TIMEOUT", .fallback = "30s", .kind = DURATION,
                      .min = WEFT_MS, .max = LONG_TIME, .in_hostfile = true,
                      .help = "how long weft_open() waits for the other nodes; the default is longer for more than 81 nodes"},
    [LIVENESS] = {INTO(fabric.liveness_ns), .name = "liveness", .variable = "WEFT_LIVENESS", .fallback = "2s", .kind = DURATION,
                  .min = 100 * WEFT_MS, .max = 3600 * WEFT_SECOND, .in_hostfile = true,
                  .help = "how long another host may be silent before its nodes count as dead"},
    /* The default is longer than most interruptions by a cable or a starting port. It is shorter than the default deadline, so that waiting
     * operations get the result of the retries. Retrying does not delay the detection of a dead peer. */
    [RECONNECT] = {INTO(fabric.reconnect_ns), .name = "reconnect", .variable = "WEFT_RECONNECT", .fallback = "10s", .kind = DURATION,
                   .max = LONG_TIME, .in_hostfile = true,
                   .help = "how long weft tries to reconnect a broken RDMA connection to a node that is alive; 0: not at all"},
    [SPIN] = {INTO(fabric.spin_ns), .name = "spin", .variable = "WEFT_SPIN", .fallback = "20us", .kind = DURATION, .max = WEFT_SECOND,
              .in_hostfile = true, .help = "how long a waiting thread keeps checking before it sleeps; 0: not at all"},
    [SERVE] = {INTO(serve), .name = "serve", .variable = "WEFT_SERVE", .fallback = "", .kind = PATH,
               .help = "what this node does for other nodes: process, name, net, file, with commas between; default: nothing"},
    [NAMES] = {INTO(names), .name = "names", .variable = "WEFT_NAMES", .fallback = "0", .kind = NUMBER, .max = 65536, .in_hostfile = true,
               .help = "name: how many names one node may publish at this node; 0: three times as many as are still free"},
    [NET_RULES] = {INTO(net_rules), .name = "net_rules", .variable = "WEFT_NET_RULES", .fallback = "", .kind = PATH,
                   .help = "net: to which addresses this node connects for others: allow=WHAT,deny=WHAT,... (man weft-proxy)"},
    [NET_SOCKETS] = {INTO(net_sockets), .name = "net_sockets", .variable = "WEFT_NET_SOCKETS", .fallback = "0", .kind = NUMBER,
                     .max = 16384, .in_hostfile = true,
                     .help = "net: how many sockets one other node may have at this node; 0: three times as many as are still free"},
    [FILE_ROOT] = {INTO(file_root), .name = "file_root", .variable = "WEFT_FILE_ROOT", .fallback = "", .kind = PATH,
                   .help =
                       "file: other nodes may open only files in this directory; unset: all files; -: only files that the program offers"},
    [FILE_CACHE] = {INTO(file_cache), .name = "file_cache", .variable = "WEFT_FILE_CACHE", .fallback = "0", .kind = BYTES,
                    .max = (int64_t)WEFT_MAX_POOL_BYTES, .in_hostfile = true,
                    .help = "file: how much of the pool keeps files that others have read, at least 4M; 0: a quarter of the pool"},
    [SSH] =
        {.name = "ssh", .variable = "WEFT_SSH", .fallback = "ssh", .kind = PATH, .help = "the command that starts nodes on other hosts"},
    [CLUSTER] = {.name = "cluster",
                 .variable = "WEFT_CLUSTER",
                 .fallback = "default",
                 .kind = PATH,
                 .help = "the name of the standing cluster that the commands use: `weft up`, `weft exec`, ..."},
    [LOG] = {.name = "log",
             .variable = "WEFT_LOG",
             .fallback = "warn",
             .kind = CHOICE,
             .choices = "error|warn|info|debug",
             .in_hostfile = true,
             .help = "how much weft prints on standard error: error, warn, info or debug"},
};

bool cluster_setting_in_hostfile(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (settings_table[i].in_hostfile && strcmp(settings_table[i].name, name) == 0)
            return true;
    return false;
}

bool cluster_is_setting(const char *variable)
{
    return strncmp(variable, "WEFT_", 5) == 0 || strncmp(variable, "FI_", 3) == 0;
}
