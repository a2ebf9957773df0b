/* SPDX-License-Identifier: MIT
 *
 * weft up on several hosts. The launcher of `weft run` starts `weft up --on-host` on each host over ssh. That command starts the host's own
 * launcher in the background, and returns when the host's nodes are up. The launcher gets the cluster's secret and settings in its
 * environment.
 */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/self.h"
#include "cli/up.h"
#include "cluster/cluster.h"

#define COUNTS_MAX (WEFT_MAX_NODES * 5u) /* longest list for --on-host, in bytes */

/* --- starting the launchers of hosts --- */

static int launch_on_hosts(struct up *u, struct launch *l, char *counts)
{
    uint64_t id;
    if (base_random(&id, sizeof id))
        return cli_error("up", "%s", base_error());
    snprintf(u->start_id, sizeof u->start_id, "%016llx", (unsigned long long)id);
    char *argv[] = {(char *)(uintptr_t)l->self,
                    (char *)(uintptr_t) "up",
                    (char *)(uintptr_t) "--on-host",
                    counts,
                    (char *)(uintptr_t) "--cluster",
                    (char *)(uintptr_t)u->cluster,
                    (char *)(uintptr_t) "--start",
                    u->start_id,
                    u->metrics ? (char *)(uintptr_t) "--metrics" : NULL,
                    (char *)(uintptr_t)u->metrics,
                    NULL};
    char *others[] = {argv[0], argv[1], argv[2], argv[3], argv[4], argv[5], argv[6], argv[7], NULL};
    l->argv = argv;
    l->others = others;
    l->kill_on_failure = true;
    int status = launch_cluster(l);
    l->argv = l->others = NULL;
    return status;
}

/* After a failure: on all hosts, end the launchers and nodes that this command has started. */
static void end_on_hosts(struct up *u, struct launch *l)
{
    char *argv[] = {(char *)(uintptr_t)l->self,
                    (char *)(uintptr_t) "up",
                    (char *)(uintptr_t) "--end",
                    (char *)(uintptr_t) "--cluster",
                    (char *)(uintptr_t)u->cluster,
                    (char *)(uintptr_t) "--start",
                    u->start_id,
                    NULL};
    l->argv = l->others = argv;
    l->kill_on_failure = false;
    launch_cluster(l);
    l->argv = l->others = NULL;
}

/* Turn the list of nodes into a list of hosts. `counts`: the number of nodes of each host, separated by commas. `ssh` gets the name of each
 * host; NULL: this host. */
static int list_hosts(const struct launch *l, const char **ssh, char *counts, uint32_t *hosts)
{
    size_t n = 0;
    *hosts = 0;
    for (uint32_t i = 0; i < l->nodes;) {
        uint32_t first = i;
        const char *name = l->ssh[i];
        for (uint32_t k = 0; k < *hosts; k++)
            if (name ? ssh[k] && strcmp(ssh[k], name) == 0 : !ssh[k])
                return cli_error("up", "the hostfile names host %s twice, with others between: put its entries together",
                                 name ? name : "localhost");
        while (i < l->nodes && (name ? l->ssh[i] && strcmp(l->ssh[i], name) == 0 : !l->ssh[i]))
            i++;
        n += (size_t)snprintf(counts + n, COUNTS_MAX - n, "%s%u", n ? "," : "", i - first);
        ssh[(*hosts)++] = name;
    }
    return 0;
}

static int start_on_hosts(struct up *u, struct launch *l, char *counts)
{
    int status = launch_on_hosts(u, l, counts);
    if (status)
        end_on_hosts(u, l);
    return status;
}

int up_hosts(struct up *u, struct launch *l, const struct standing_place *p)
{
    static char counts[COUNTS_MAX];
    const char **ssh = calloc(l->nodes, sizeof *ssh);
    uint32_t hosts;
    (void)p;
    if (!ssh)
        return cli_error("up", "no memory for %u hosts" BASE_MEMORY_HINT, l->nodes);
    if (u->foreground) {
        free(ssh);
        return cli_usage("up", "--foreground is for nodes on this host; for several hosts, start `weft up --here` on each of them");
    }
    int status = list_hosts(l, ssh, counts, &hosts);
    struct launch all = *l;
    all.nodes = hosts;
    all.ssh = ssh;
    if (!status)
        status = start_on_hosts(u, &all, counts);
    free(ssh);
    return status;
}

/* Read from --on-host how many nodes this host has. */
static int take_count(struct up *u, struct launch *l, uint32_t host, uint32_t hosts)
{
    int64_t n;
    char one[16];
    uint32_t i = 0, total = 0;
    for (const char *at = u->on_host; *at; i++) {
        size_t len = strcspn(at, ",");
        snprintf(one, sizeof one, "%.*s", (int)(len < sizeof one ? len : 0), at);
        if (base_parse_number(one, 1, WEFT_MAX_NODES, &n))
            return -EINVAL;
        if (i < host)
            l->first += (uint32_t)n;
        if (i == host)
            l->nodes = (uint32_t)n;
        total += (uint32_t)n;
        at += len + (at[len] == ',');
    }
    l->size = total;
    return i == hosts && host < hosts && total <= WEFT_MAX_NODES ? 0 : -EINVAL;
}

/* Open the file with the id of the `weft up` that has started the cluster. A failed start must end only its own nodes, since another
 * cluster of the same name may be up. */
static FILE *start_file(const struct standing_place *p, const char *mode)
{
    char path[STANDING_PATH + 8];
    snprintf(path, sizeof path, "%s/start", p->folder);
    return fopen(path, mode);
}

static int keep_start(const struct up *u, const struct standing_place *p)
{
    FILE *f = start_file(p, "we");
    bool written = f && fprintf(f, "%s\n", u->start ? u->start : "") > 0;
    if (f)
        written = fclose(f) == 0 && written;
    return written ? 0 : base_fail(-EIO, "cannot write the file %s/start: %s", p->folder, base_strerror(errno));
}

int up_end_started(const struct up *u)
{
    struct standing_place place;
    char line[sizeof u->start_id + 2] = "";
    if (!u->start)
        return up_end("up", u->cluster, true);
    if (standing_find(&place, u->cluster, false))
        return 0;
    FILE *f = start_file(&place, "re");
    bool ours = f && fgets(line, sizeof line, f);
    line[strcspn(line, "\n")] = '\0';
    if (f)
        fclose(f);
    return ours && strcmp(line, u->start) == 0 ? up_end("up", u->cluster, true) : 0;
}

int up_on_host(struct up *u, struct launch *l)
{
    static char self[4096], coord[160], join[4096];
    struct standing_place place;
    const char *rank = getenv("WEFT_RANK"), *size = getenv("WEFT_SIZE"), *at = getenv("WEFT_COORD"), *members = getenv("WEFT_JOIN");
    int64_t host, hosts;
    int lock;
    if (!rank || !size || !at || base_parse_number(rank, 0, WEFT_MAX_NODES, &host) || base_parse_number(size, 1, WEFT_MAX_NODES, &hosts) ||
        take_count(u, l, (uint32_t)host, (uint32_t)hosts) || cluster_address_check(at) || strlen(at) >= sizeof coord)
        return cli_usage(
            "up", "--on-host is for weft's own use: leave it out; if weft itself gave it, run the same version of weft on all hosts");
    snprintf(coord, sizeof coord, "%s", at);
    snprintf(join, sizeof join, "%s", members ? members : "");
    u->joins = join[0];
    unsetenv("WEFT_RANK");
    unsetenv("WEFT_SIZE");
    unsetenv("WEFT_JOIN");
    l->coord = coord;
    l->self = self_path(self, sizeof self);
    char other[160];
    snprintf(other, sizeof other, "%.*s", (int)strcspn(join, ","), join);
    if (up_own_door(u, coord, u->joins ? other : coord))
        return cli_error("up", "%s", base_error());
    if (u->joins)
        snprintf(u->join, sizeof u->join, "%s", join);
    else /* node 0's address, until the addresses of other members are known */
        snprintf(u->join, sizeof u->join, "%.*s:%s", (int)(strrchr(coord, ':') - coord), coord, up_port_of(u->door));
    if (standing_find(&place, u->cluster, true) || (lock = standing_lock(&place, false)) < 0)
        return cli_error("up", "%s", base_error());
    u->cluster = place.name;
    int status = keep_start(u, &place) ? cli_error("up", "%s", base_error()) : up_background(u, l, &place);
    close(lock);
    return status;
}

/* --- --add --- */

/* Ask the running cluster what a node needs to join, and put that into the environment. */
static json_t *ask_cluster(struct up *u, struct launch *l)
{
    static char hostfile[4096];
    struct control_request r = {.head = {.what = CONTROL_JOIN}};
    struct cluster_hostfile *h = NULL;
    char *text = NULL;
    json_t *o = standing_text("up", u->cluster, &r, &text) ? NULL : json_loads(text, 0, NULL);
    if (text)
        sodium_memzero(text, strlen(text));
    free(text);
    static const char *const needed[] = {"members", "door", "coord", "hostfile", "pool"};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0] && o; i++)
        if (!json_is_string(json_object_get(o, needed[i]))) {
            json_decref(o);
            o = NULL;
            cli_error("up", "the standing cluster's answer is invalid; run the same version of weft on all hosts");
        }
    if (!o)
        return NULL;
    const char *secret = json_string_value(json_object_get(o, "secret")), *path = json_string_value(json_object_get(o, "hostfile"));
    const char *pool = json_string_value(json_object_get(o, "pool"));
    if (path[0] && strncmp(path, "/dev/fd/", 8) != 0 && cluster_hostfile_read(&h, path)) {
        cli_error("up", "%s", base_error());
        json_decref(o);
        return NULL;
    }
    hosts_set_settings(json_object_get(o, "settings"), h);
    if (h)
        cluster_hostfile_free(h);
    snprintf(hostfile, sizeof hostfile, "%s", path);
    l->hostfile = hostfile[0] ? hostfile : NULL;
    unsetenv("WEFT_SECRET_FILE");
    if (secret)
        setenv("WEFT_SECRET", secret, 1);
    else
        unsetenv("WEFT_SECRET");
    if (pool[0] && !l->pool)
        setenv("WEFT_POOL", pool, 1);
    setenv("WEFT_SERVE", "process,name,net,file", 1);
    return o;
}

static int add_here(struct up *u, struct launch *l, const json_t *o, uint32_t count)
{
    static char self[4096], coord[160];
    static struct standing_place place; /* static, because u->cluster points into it */
    int lock;
    if (json_is_true(json_object_get(o, "emulated")))
        return cli_error(
            "up",
            "--add: this cluster runs on emulated hosts, whose number is fixed: start it anew with more hosts (`weft up --softverbs`)");
    snprintf(u->door, sizeof u->door, "%s", json_string_value(json_object_get(o, "door")));
    snprintf(u->join, sizeof u->join, "%s", json_string_value(json_object_get(o, "members")));
    snprintf(coord, sizeof coord, "%s", json_string_value(json_object_get(o, "coord")));
    setenv("WEFT_GROW", u->door, 1);
    l->coord = coord;
    l->nodes = count;
    l->self = self_path(self, sizeof self);
    u->joins = u->more = true;
    u->place = (uint32_t)json_integer_value(json_object_get(o, "numbers")); /* a place that no node of this host has had */
    if (standing_find(&place, u->cluster, false) || (lock = standing_lock(&place, true)) < 0)
        return cli_error("up", "%s", base_error());
    u->cluster = place.name;
    int status = up_background(u, l, &place);
    close(lock);
    return status;
}

static int add_hosts(struct up *u, struct launch *l, const json_t *o, char *names)
{
    static char counts[COUNTS_MAX], coord[160];
    char *list[WEFT_MAX_NODES], *save = NULL, wildcard[32];
    struct hosts hosts = {.count = 0};
    static struct standing_place place;
    const char *door = json_string_value(json_object_get(o, "door"));
    uint32_t count = 0;
    size_t n = 0;
    if (up_is_unix(door) || up_is_any(door))
        return cli_error("up",
                         "--add: the cluster's nodes let others join at %s, which other hosts do not reach: start the cluster with a "
                         "hostfile, or with WEFT_GROW=HOST:PORT, an address of this host",
                         door);
    for (char *name = strtok_r(names, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        if (name[0] == '-')
            return cli_usage("up", "--add: '%s' is not the name of a host", name);
        if (count == WEFT_MAX_NODES)
            return cli_usage("up", "--add: there are more than %u names: add fewer hosts at a time", WEFT_MAX_NODES);
        list[count++] = name;
        n += (size_t)snprintf(counts + n, sizeof counts - n, n ? ",1" : "1");
    }
    if (!count)
        return cli_usage("up", "--add: expected a number of nodes, or names of hosts with commas between");
    if (standing_find(&place, u->cluster, false))
        return cli_error("up", "%s", base_error());
    u->cluster = place.name;
    snprintf(coord, sizeof coord, "%s", json_string_value(json_object_get(o, "coord")));
    snprintf(wildcard, sizeof wildcard, "%s:%s", door[0] == '[' ? "[::]" : "0.0.0.0", up_port_of(door));
    setenv("WEFT_GROW", wildcard, 1);
    setenv("WEFT_JOIN", json_string_value(json_object_get(o, "members")), 1);
    l->hostfile = NULL;
    int status = hosts_apply_list(l, &hosts, list, count);
    l->coord = coord[0] && !up_is_unix(coord) ? coord : door;
    if (!status)
        status = launch_on_hosts(u, l, counts);
    hosts_free(&hosts, count);
    return status;
}

int up_add(struct up *u, struct launch *l)
{
    int64_t n = 0;
    if (l->nodes || l->hostfile || l->softverbs || u->foreground || u->metrics)
        return cli_usage("up", "--add takes the cluster's settings: leave out all but --cluster, --pool and --remote-weft");
    bool number = u->add[strspn(u->add, "0123456789")] == '\0';
    if (number && base_parse_number(u->add, 1, WEFT_MAX_NODES, &n))
        return cli_usage("up", "--add '%s': expected a number of nodes from 1 to %u, or names of hosts", u->add, WEFT_MAX_NODES);
    char *names = strdup(u->add);
    json_t *o = names ? ask_cluster(u, l) : NULL;
    int status = !o ? CLI_FAILED : number ? add_here(u, l, o, (uint32_t)n) : add_hosts(u, l, o, names);
    if (!status)
        fprintf(stderr, "weft up: cluster '%s' has grown: see `weft status`\n", u->cluster);
    json_decref(o);
    free(names);
    return status;
}
