/* SPDX-License-Identifier: MIT
 *
 * weft up: the interface between up.c (the command line, one node), up_launcher.c (the launcher of this host), up_door.c (the address at
 * which others join), up_hosts.c (several hosts, and nodes that are added) and up_here.c (a node without a launcher, --here).
 */
#ifndef WEFT_CLI_UP_H
#define WEFT_CLI_UP_H

#include "cli/hosts.h"
#include "cli/launch.h"
#include "cli/standing.h"

struct up {
    const char *cluster, *metrics, *add;
    const char *on_host; /* how many nodes each host has, for example "2,1,1"; WEFT_RANK is the index of this host's entry */
    bool foreground, here, as_node, end; /* end: act as `weft down`, but without an error if there is no cluster */
    bool joins;                          /* the nodes join a cluster that is already up */
    bool more;                           /* this host already has nodes of that cluster, with another launcher */
    /* id of this `weft up`, so that --end does not end another cluster of the same name */
    const char *start;
    char start_id[20];
    uint32_t first;  /* --first: WEFT_RANK of the first node of this host */
    uint32_t place;  /* place of the first node that is started (struct launch_revive) */
    char door[160];  /* WEFT_GROW: the address at which the nodes of this host let others join */
    char join[4096]; /* WEFT_JOIN for nodes that are started again */
};

/* --- up_door.c --- */
const char *up_port_of(const char *address); /* the port in an address; "": there is none */
bool up_is_unix(const char *address);
bool up_is_any(const char *address); /* whether the address means all addresses of a host (0.0.0.0 or [::]) */
/* Choose where a node of this host lets others join: at the local address from which `other` is reached, with the port after that of
 * `coord`, node 0's address. Returns 0, or a negative errno with base_error(). */
int up_door_beside(char *door, size_t len, const char *coord, const char *other);
/* Replace the address in WEFT_GROW by an address of this host that other hosts can use. `other`: an address of another host, or of node
 * 0. */
int up_own_door(struct up *u, const char *coord, const char *other);

/* --- up_launcher.c --- */
/* Start the launcher of this host in the background, and wait until its nodes are up. The launcher keeps the cluster's lock, which the
 * caller holds. */
int up_background(struct up *u, struct launch *l, const struct standing_place *p);
/* Run the launcher in this process until all its nodes have ended. */
int up_launch(struct up *u, struct launch *l, const struct standing_place *p);
/* The nodes of a launcher have ended: remove the files that are only for the running cluster. `last`: no other launcher needs to know that
 * the cluster has ended. */
void up_ended(const struct standing_place *p, bool last);
/* Remove the files that a killed cluster has left. The caller holds the cluster's lock. */
void up_remove_old(const struct standing_place *p);
/* weft down. `quiet`: no error if the cluster is not up. */
int up_end(const char *sub, const char *cluster, bool quiet);

/* --- up_hosts.c: each function returns the exit status, after it has printed the error --- */
/* Start a cluster on several hosts: starts the launcher of each host by ssh. */
int up_hosts(struct up *u, struct launch *l, const struct standing_place *p);
/* On one of the hosts of up_hosts(): start the launcher of this host. */
int up_on_host(struct up *u, struct launch *l);
/* On one of the hosts of up_hosts(): end the launcher and the nodes that this `weft up` has started on it. */
int up_end_started(const struct up *u);
int up_add(struct up *u, struct launch *l); /* --add */
/* --- up_here.c: returns the exit status --- */
int up_here(struct up *u, const struct launch *l);

#endif
