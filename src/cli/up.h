/* SPDX-License-Identifier: MIT
 *
 * weft up: what its files share. up.c: the command line, one node. up_launcher.c: the launcher of this host. up_door.c: where nodes let
 * others join. up_hosts.c: several hosts, and nodes that are added. up_here.c: a node without a launcher (--here).
 */
#ifndef WEFT_CLI_UP_H
#define WEFT_CLI_UP_H

#include "cli/hosts.h"
#include "cli/launch.h"
#include "cli/standing.h"

struct up {
    const char *cluster, *metrics, *add;
    const char *on_host;                 /* as in "2,1,1": how many nodes each host has. This one is that of WEFT_RANK */
    bool foreground, here, as_node, end; /* end: weft down, but quiet if there is no cluster */
    bool joins;                          /* the nodes join a cluster that is up */
    bool more;                           /* and this host has nodes of it already, with another launcher */
    const char *start;                   /* which start this is, for --on-host and --end: other clusters of this name are not ended */
    char start_id[20];
    uint32_t first;  /* --first: WEFT_RANK of the first node of this host */
    uint32_t place;  /* of the first node that is started */
    char door[160];  /* WEFT_GROW */
    char join[4096]; /* WEFT_JOIN of nodes that are started again */
};

/* --- up_door.c --- */
const char *up_port_of(const char *address); /* "": it has none */
bool up_is_unix(const char *address);
bool up_is_any(const char *address); /* whether it stands for all addresses of a host */
/* Where a node of this host lets others join, when node 0 is at `coord`: the address of this host from which it reaches `other`, with the
 * port above that of `coord`. Returns 0, or a negative errno with base_error(). */
int up_door_beside(char *door, size_t len, const char *coord, const char *other);
/* Set WEFT_GROW of the nodes of this host: what is set already, but with this host's own address, which others can be told. `other`: an
 * address of another host, or of node 0. */
int up_own_door(struct up *u, const char *coord, const char *other);

/* --- up_launcher.c --- */
/* Start the launcher of this host in the background, and wait until its nodes are up. With the cluster's lock, which the launcher keeps. */
int up_background(struct up *u, struct launch *l, const struct standing_place *p);
/* The launcher itself, in this process: until all its nodes have ended. */
int up_launch(struct up *u, struct launch *l, const struct standing_place *p);
/* Remove the files that a killed cluster has left. With the cluster's lock. */
void up_remove_old(const struct standing_place *p);
/* weft down. `quiet`: a cluster that is not up is no error. */
int up_end(const char *sub, const char *cluster, bool quiet);

/* --- up_hosts.c: all return the exit status, after an error was printed --- */
/* Start a cluster of several hosts: the launcher of each, over ssh. */
int up_hosts(struct up *u, struct launch *l, const struct standing_place *p);
/* On one of those hosts: start the launcher there. */
int up_on_host(struct up *u, struct launch *l);
/* On one of those hosts: end what this start has begun there. */
int up_end_started(const struct up *u);
int up_add(struct up *u, struct launch *l); /* --add */
/* --- up_here.c: the exit status --- */
int up_here(struct up *u, const struct launch *l);

#endif
