/* SPDX-License-Identifier: MIT
 *
 * weft up --here: this process itself is the node, without a launcher. If the cluster is running, the node joins it; otherwise the node
 * waits for the other nodes, to begin the cluster with them.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/up.h"
#include "cluster/cluster.h"

#define PROBE_NS    (300 * WEFT_MS)   /* how long one member of a running cluster may take to accept a connection */
#define PROBES_NS   (3 * WEFT_SECOND) /* how long all members together may take */
#define PROBE_AGAIN (5 * WEFT_SECOND) /* time between two checks whether the cluster is running */

/* Whether a connection is accepted at one of these addresses, which means that a cluster is running there. */
static bool somebody_listens(const char *list)
{
    char one[128];
    int64_t until = base_deadline(PROBES_NS);
    for (const char *p = list; *p && base_now_ns() < until;) {
        size_t n = strcspn(p, ",");
        snprintf(one, sizeof one, "%.*s", (int)(n < sizeof one ? n : 0), p);
        int fd = one[0] ? cluster_connect(one, base_deadline(PROBE_NS)) : -1;
        if (fd >= 0) {
            close(fd);
            return true;
        }
        p += n + (p[n] == ',');
    }
    base_error_clear();
    return false;
}

/* List the addresses where this cluster would let nodes join: those of node 0's host, and of all hosts in the hostfile. */
static void guess_members(struct up *u, const struct cluster_settings *s)
{
    const char *port = up_port_of(u->door);
    size_t n = (size_t)snprintf(u->join, sizeof u->join, "%.*s:%s", (int)(strrchr(s->coord, ':') - s->coord), s->coord, port);
    for (uint32_t i = 0; s->hosts && i < s->hosts->count; i++) {
        const struct cluster_host *h = &s->hosts->hosts[i];
        const char *at = h->ssh ? strchr(h->ssh, '@') : NULL, *name = h->ip_count ? h->ips[0] : at ? at + 1 : h->ssh;
        bool v6 = name && strchr(name, ':');
        if (name && n + strlen(name) + 12 < 500) /* the longest value of WEFT_JOIN */
            n += (size_t)snprintf(u->join + n, sizeof u->join - n, v6 ? ",[%s]:%s" : ",%s:%s", name, port);
    }
}

static const char *members; /* addresses of this cluster's members, if it is running */

/* Called while this node waits for the others. Returns whether the cluster has begun without this host. */
static int runs_meanwhile(void)
{
    static int64_t next;
    static bool probing; /* this function is connecting, and connecting calls this function again */
    if (probing || base_now_ns() < next)
        return 0;
    probing = true;
    bool runs = next && somebody_listens(members);
    next = base_deadline(PROBE_AGAIN);
    probing = false;
    return runs;
}

static void join_the_running_one(void)
{
    setenv("WEFT_JOIN", members, 1);
    unsetenv("WEFT_RANK");
    unsetenv("WEFT_SIZE");
}

/* Choose WEFT_GROW, and join the cluster if it runs already. */
static int here_settings(struct up *u, const struct standing_place *p)
{
    struct cluster_settings s;
    const char *join = getenv("WEFT_JOIN"), *grow;
    bool set = join && join[0];
    if (cluster_settings_resolve(&s, NULL))
        return cli_error("up", "%s", base_error());
    if (s.grow[0])
        setenv("WEFT_GROW", s.grow, 1); /* the value may come from the hostfile */
    int status = 0;
    if (set || !s.coord[0]) {
        grow = getenv("WEFT_GROW");
        bool given = grow && grow[0];
        if (!given && set)
            status = cli_error("up", "WEFT_GROW is not set: set it to HOST:PORT of this host, where other nodes are to join");
        else if (!given && cluster_private_address(u->door, sizeof u->door, "grow", p->folder)) /* a cluster of one node */
            status = cli_error("up", "%s", base_error());
        else if (!given)
            setenv("WEFT_GROW", u->door, 1);
    } else if (up_is_unix(s.coord)) { /* all nodes are on one host */
        snprintf(u->door, sizeof u->door, "%.150s.grow", s.coord);
        setenv("WEFT_GROW", u->door, 0);
        snprintf(u->join, sizeof u->join, "%s", getenv("WEFT_GROW"));
    } else if (up_own_door(u, s.coord, s.coord)) {
        status = cli_error("up", "%s", base_error());
    } else {
        guess_members(u, &s);
    }
    cluster_settings_clear(&s);
    members = !set && u->join[0] ? u->join : NULL;
    if (!status && members && somebody_listens(members)) {
        join_the_running_one();
        members = NULL;
    }
    return status;
}

int up_here(struct up *u, const struct launch *l)
{
    struct standing_place place;
    if (l->nodes || l->softverbs)
        return cli_usage("up", "--here starts one node: leave out -n and --softverbs");
    if (standing_find(&place, u->cluster, true) || standing_lock(&place, false) < 0)
        return cli_error("up", "%s", base_error());
    unlink(place.down); /* left by a node or a command that was killed */
    const char *rank = getenv("WEFT_RANK");
    int64_t slot;
    if (!rank || base_parse_number(rank, 0, WEFT_MAX_NODES - 1, &slot)) /* a node that replaces this node has the same slot */
        slot = 0;
    if (l->hostfile)
        setenv("WEFT_HOSTFILE", l->hostfile, 1);
    if (l->pool)
        setenv("WEFT_POOL", l->pool, 1);
    int status = here_settings(u, &place);
    if (!status)
        status = standing_node(&place, (uint32_t)slot, UINT32_MAX, u->metrics, members ? runs_meanwhile : NULL);
    if (status == STANDING_INSTEAD) {
        join_the_running_one();
        status = standing_node(&place, (uint32_t)slot, UINT32_MAX, u->metrics, NULL);
    }
    up_ended(&place, true); /* these files are only for launchers */
    if (status > 128)
        return 0; /* a signal has ended it */
    return status == LAUNCH_CANNOT_JOIN || status == LAUNCH_NOT_JOINED ? CLI_FAILED : status;
}
