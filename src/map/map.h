/* SPDX-License-Identifier: MIT
 *
 * map: the engine of `weft map`. Inputs are cut into pieces. Each piece is a task of the queue, on which some node runs a command or a
 * kernel. The outputs are printed in the order of the input.
 *
 * The process that calls map_run() is node 0, the owner: it cuts the inputs, submits the pieces, takes the completions and prints the
 * outputs. It also runs pieces, as the other nodes do. The other nodes may be forks of the owner, which inherit the options and the open
 * inputs. Or they are apart: the launcher has started them on other hosts. Nodes that are apart get the options and the bytes of the inputs
 * over the fabric. From such a node, the owner fetches the whole output of a piece before it prints any byte of that output.
 *
 *      owner.c   feeder thread: cut.c (files), stream.c (pipes)  ->  queue
 *      worker.c  slot threads of every node: claim -> command.c (spawn.c) or a kernel (gpu.c) -> capture.c -> complete
 *      owner.c   main thread: reap -> retry, or emit.c in order -> release
 *      nodes.c   opens nodes, records the running commands on the board, and ends everything at once
 *      apart.c   nodes on other hosts: order.c (command and limits), carry.c (bytes that one node reads for another),
 *                cached.c (files that one node reads once for all), home.c (outputs that the owner fetches)
 *
 * A piece either succeeds or fails as a whole: its output is captured completely before any of it is printed.
 */
#ifndef WEFT_MAP_ROOM_H
#define WEFT_MAP_ROOM_H

#include "base/base.h"

enum map_cut { MAP_CUT_LINES, MAP_CUT_SEPARATOR, MAP_CUT_EXACT };
enum map_when { MAP_AUTO, MAP_ALWAYS, MAP_NEVER };

struct map_options {
    char *const *files;
    uint32_t file_count;
    /* With `apart`, if other nodes have some of the files (HOST:PATH): a character for each file, which is MAP_HOME_HERE, or MAP_HOME_FIRST
     * + the number of the node that has the file. Otherwise NULL */
    const char *homes;
    char *const *command;    /* NULL-terminated; NULL: a kernel */
    const char *kernel;      /* NAME[:TEXT]; with kernel_file: the name of a symbol in that file */
    const char *kernel_file; /* shared object with the kernel; NULL: a built-in kernel */
    const char *gpu; /* run the kernel on GPUs. "": each node on one GPU; a number: all nodes on the GPU of that number; "host": on the
                        GPU `host`, whose blocks are threads of the processor. NULL: no GPUs */
    uint32_t nodes, slots; /* 0: chosen from the number of processors */
    uint64_t memory_bytes; /* of all pools together; 0: chosen from the machine's memory */
    const char *memory;    /* the option's text, for messages */
    uint64_t block_bytes;
    enum map_cut cut;
    const char *separator;
    size_t separator_len;
    uint32_t retries;
    int64_t timeout_ns; /* 0: none */
    const char *output; /* NULL: standard output */
    const char *stats_file;
    bool unordered, literal, stats, json, dry_run;
    enum map_when progress;
    bool apart;    /* the launcher has started this process as node 0, and the other nodes on other hosts */
    bool emulated; /* with `apart`: the hosts are emulated, so all nodes run on this machine */
};

#define MAP_BLOCK_DEFAULT   (UINT64_C(4) << 20)
#define MAP_RETRIES_DEFAULT 2u
#define MAP_NODES_MAX       64u
#define MAP_HOME_HERE       '.'
#define MAP_HOME_FIRST      '0'
#define MAP_HOMES_MAX       131071u /* most files of a job, if some are on other hosts: one argument of a program can have 128 KiB */
#define MAP_SLOTS_MAX       1024u

/* Check the options before nodes are launched, and compute the pool size of each node. Returns 0. After an error, prints it and returns the
 * exit status. */
int map_plan(const struct map_options *options, uint64_t *pool_bytes);
/* Run a node other than node 0 of a launched job. The environment has the node's number, and node 0 sends it the job's description. Returns
 * the exit status. */
int map_serve(void);
/* Run the job. Returns the exit status; errors have been printed on stderr. */
int map_run(const struct map_options *options);

#endif
