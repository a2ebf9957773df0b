/* SPDX-License-Identifier: MIT
 *
 * Applies the hostfile to a launch: how many nodes there are, which nodes are on other hosts, and which settings these nodes must get.
 */
#include "cli/hosts.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/self.h"
#include "cluster/cluster.h"

extern char **environ;

static bool is_own_address(const char *text)
{
    struct in6_addr wanted;
    char bare[INET6_ADDRSTRLEN + 1];
    size_t n = strcspn(text, "%"); /* up to the name of an interface, as in fe80::1%en1 */
    struct ifaddrs *list;
    bool found = false;
    if (strcasecmp(text, "localhost") == 0)
        return true;
    if (n >= sizeof bare)
        return false;
    memcpy(bare, text, n);
    bare[n] = '\0';
    int family = strchr(bare, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, bare, &wanted) != 1 || getifaddrs(&list))
        return false;
    for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != family)
            continue;
        if (family == AF_INET)
            found = memcmp(&((struct sockaddr_in *)i->ifa_addr)->sin_addr, &wanted, sizeof(struct in_addr)) == 0;
        else
            found = memcmp(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, &wanted, sizeof wanted) == 0;
    }
    freeifaddrs(list);
    return found;
}

/* Whether a host is this machine: the entry has neither names nor addresses, or one of them belongs to this machine. */
static bool hosts_is_here(const struct cluster_host *h)
{
    char name[256] = "";
    if (!h->ssh && h->ip_count == 0)
        return true;
    gethostname(name, sizeof name - 1);
    const char *at = h->ssh ? strchr(h->ssh, '@') : NULL;
    const char *ssh = at ? at + 1 : h->ssh;
    if (ssh && (strcasecmp(ssh, name) == 0 || is_own_address(ssh)))
        return true;
    for (uint32_t i = 0; i < h->ip_count; i++)
        if (is_own_address(h->ips[i]) || strcasecmp(h->ips[i], name) == 0)
            return true;
    return false;
}

static bool hosts_is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && value[0];
}

/* --- other machines --- */

static int hosts_tell(struct hosts *r, const struct launch *l, const char *name, const char *value, size_t len)
{
    size_t name_len = strlen(name);
    char *text = r->count < HOSTS_TOLD_MAX ? malloc(name_len + len + 2) : NULL;
    if (!text)
        return cli_error(l->sub, "no memory for the environment of nodes on other hosts" BASE_MEMORY_HINT);
    memcpy(text, name, name_len);
    text[name_len] = '=';
    memcpy(text + name_len + 1, value, len);
    text[name_len + 1 + len] = '\0';
    r->told[r->count++] = text;
    return 0;
}

/* The name of the environment variable for a setting of the hostfile. */
static void variable_of(const struct cluster_pair *setting, char *name, size_t len)
{
    size_t n = (size_t)snprintf(name, len, "WEFT_");
    for (const char *p = setting->name; *p && n + 1 < len; p++)
        name[n++] = (char)toupper((unsigned char)*p);
    name[n] = '\0';
}

/* Pass this host's settings, with those of the hostfile and those of libfabric (FI_*), to nodes on other hosts. The secret, and settings
 * that differ between nodes, are not passed. */
static int tell_settings(struct hosts *r, const struct launch *l, const struct cluster_hostfile *h)
{
    static const char *const not_these[] = {"WEFT_RANK",   "WEFT_SIZE",        "WEFT_COORD", "WEFT_HOSTFILE",
                                            "WEFT_SECRET", "WEFT_SECRET_FILE", "WEFT_SSH",   "WEFT_GUARD_SOCKET"};
    int status = 0;
    for (char **e = environ; *e && !status; e++) {
        size_t n = strcspn(*e, "=");
        bool pass = cluster_is_setting(*e) && (*e)[n];
        for (size_t i = 0; i < sizeof not_these / sizeof not_these[0] && pass; i++)
            pass = strlen(not_these[i]) != n || memcmp(*e, not_these[i], n) != 0;
        char name[64];
        if (pass && n < sizeof name) {
            memcpy(name, *e, n);
            name[n] = '\0';
            status = hosts_tell(r, l, name, *e + n + 1, strlen(*e + n + 1));
        }
    }
    for (uint32_t i = 0; i < h->setting_count && !status; i++) {
        char name[64];
        variable_of(&h->settings[i], name, sizeof name);
        if (strcmp(name, "WEFT_SECRET_FILE") != 0 && !hosts_is_set(name))
            status = hosts_tell(r, l, name, h->settings[i].value, strlen(h->settings[i].value));
    }
    return status;
}

/* Prepare what nodes on other hosts need: the settings, the address of node 0, and the secret if there is one. */
static int hosts_prepare_remote(struct hosts *r, struct launch *l, const struct cluster_hostfile *h, const char *path)
{
    struct cluster_settings s;
    const weft_config c = {.bytes = sizeof c, .hostfile = path, .rank = 0, .size = h->count};
    int status = tell_settings(r, l, h);
    if (status)
        return status;
    if (cluster_settings_resolve(&s, &c))
        return cli_error(l->sub, "%s", base_error());
    if (strncmp(s.coord, "unix:", 5) == 0)
        status = cli_error(l->sub,
                           "node 0 listens at %s, which other hosts cannot reach: set WEFT_COORD to HOST:PORT, or unset "
                           "it",
                           s.coord);
    else if (s.secret && memchr(s.secret, 0, s.secret_len))
        status = cli_error(l->sub, "the secret contains a zero byte, which cannot be passed to other hosts: choose another secret");
    else if (s.secret)
        status = hosts_tell(r, l, "WEFT_SECRET", (const char *)s.secret, s.secret_len);
    snprintf(r->coord, sizeof r->coord, "%s", s.coord);
    cluster_settings_clear(&s);
    l->told = (const char *const *)r->told;
    l->ssh = (const char *const *)r->hosts;
    l->coord = r->coord;
    return status;
}

void hosts_free(struct hosts *r, uint32_t nodes)
{
    for (uint32_t i = 0; r->hosts && i < nodes; i++)
        free(r->hosts[i]);
    for (uint32_t i = 0; r->named && i < nodes; i++)
        free(r->named[i].host);
    free(r->named);
    for (unsigned i = 0; i < r->count; i++) {
        sodium_memzero(r->told[i], strlen(r->told[i])); /* one of these strings is the secret */
        free(r->told[i]);
    }
    free(r->hosts);
}

int64_t hosts_find(const struct hosts *h, uint32_t nodes, const char *text, size_t len)
{
    int64_t number;
    char word[256];
    if (len >= sizeof word)
        return -1;
    memcpy(word, text, len);
    word[len] = '\0';
    bool is_number = base_parse_number(word, 0, UINT32_MAX, &number) == 0;
    for (uint32_t i = 0; i < nodes; i++) {
        const char *host = h->named ? h->named[i].host : NULL, *at = host ? strchr(host, '@') : NULL;
        if (is_number ? (h->named ? h->named[i].number : i) == (uint32_t)number
                      : host && (strcmp(word, host) == 0 || (at && strcmp(word, at + 1) == 0)))
            return i;
    }
    return -1;
}

/* If the hostfile is a pipe, only one node could read it. So copy it to an unlinked file that the nodes of this host inherit. `*path`
 * becomes the path of this file. */
static int keep_pipe(struct launch *l, struct hosts *r, const char **path)
{
    struct stat st;
    char some[4096];
    size_t n, whole = 0;
    if (stat(*path, &st) || !S_ISFIFO(st.st_mode))
        return 0;
    FILE *from = fopen(*path, "re"), *to = tmpfile();
    int fd = -1;
    if (from && to) {
        while ((n = fread(some, 1, sizeof some, from)) > 0 && fwrite(some, 1, n, to) == n && (whole += n) <= CLUSTER_HOSTFILE_MAX)
            ;
        if (!ferror(from) && fflush(to) == 0 && !ferror(to))
            fd = fcntl(fileno(to), F_DUPFD, 3); /* not close-on-exec: the nodes inherit it */
    }
    int status = fd >= 0 ? 0 : cli_error(l->sub, "hostfile %s: cannot be copied for the nodes: %s", *path, base_strerror(errno));
    if (from)
        fclose(from);
    if (to)
        fclose(to);
    if (!status) {
        snprintf(r->hostfile, sizeof r->hostfile, "/dev/fd/%d", fd);
        *path = l->hostfile = r->hostfile;
    }
    return status;
}

/* Apply the hostfile: the number of nodes, which nodes are on other hosts, and whether there is a secret. */
static int apply_hostfile(struct launch *l, struct hosts *r, const char *path)
{
    struct cluster_hostfile *h;
    int status = keep_pipe(l, r, &path);
    bool elsewhere = false;
    if (status)
        return status;
    if (cluster_hostfile_read(&h, path))
        return cli_error(l->sub, "%s", base_error());
    if (l->nodes && l->nodes != h->count)
        status = cli_usage(l->sub, "%u nodes were requested, but hostfile %s has %u: leave out the number", l->nodes, path, h->count);
    for (uint32_t i = 0; i < h->setting_count; i++)
        if (strcmp(h->settings[i].name, "secret_file") == 0)
            l->make_secret = false;
    l->nodes = h->count;
    r->hosts = calloc(h->count, sizeof *r->hosts);
    r->named = calloc(h->count, sizeof *r->named);
    for (uint32_t i = 0; i < h->count && r->hosts && r->named && !status; i++) {
        const struct cluster_host *host = &h->hosts[i];
        const char *called = host->ssh ? host->ssh : host->ip_count ? host->ips[0] : NULL;
        r->named[i] = (struct hosts_named){called ? strdup(called) : NULL, i};
        if (hosts_is_here(host))
            continue;
        const char *name = host->ssh ? host->ssh : host->ips[0];
        r->hosts[i] = strdup(name);
        elsewhere = true;
        if (!r->hosts[i] || name[0] == '-' || !name[0])
            status = cli_error(l->sub, "hostfile %s: node %u: '%s' is not the name of a host", path, i, name);
    }
    if (!r->hosts || !r->named)
        status = cli_error(l->sub, "no memory for %u hosts" BASE_MEMORY_HINT, h->count);
    if (!status && elsewhere && l->softverbs)
        status =
            cli_usage(l->sub, "--softverbs emulates hosts on this host, but hostfile %s has other hosts: leave out one of the two", path);
    if (!status && elsewhere)
        status = hosts_prepare_remote(r, l, h, path);
    cluster_hostfile_free(h);
    return status;
}

/* --- a standing cluster --- */

/* Put the cluster's settings into this environment, for all nodes. Environment variables that are set already keep their values. */
void hosts_set_settings(const json_t *settings, const struct cluster_hostfile *h)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)settings, key, value)
        if ((strncmp(key, "WEFT_", 5) == 0 || strncmp(key, "FI_", 3) == 0) && json_is_string(value))
            setenv(key, json_string_value(value), 0);
    for (uint32_t i = 0; h && i < h->setting_count; i++) {
        char name[64];
        variable_of(&h->settings[i], name, sizeof name);
        /* the new cluster has a secret of its own, and nodes of the standing cluster do not join it */
        if (strcmp(name, "WEFT_SECRET_FILE") != 0 && strcmp(name, "WEFT_GROW") != 0 && strcmp(name, "WEFT_JOIN") != 0)
            setenv(name, h->settings[i].value, 0);
    }
}

/* Choose where node 0 listens: at the address of the standing cluster's node 0, with a port that is free now. */
static int choose_coord(struct launch *l, struct hosts *r, const char *address)
{
    char bound[sizeof r->coord], any[sizeof r->coord];
    const char *colon = strrchr(address, ':');
    if (!colon)
        return cli_error(l->sub, "no address is known where node 0 of the program can listen: start this host's node by `weft up --here` "
                                 "with WEFT_GROW set to HOST:PORT");
    snprintf(any, sizeof any, "%.*s:0", (int)(colon - address), address);
    int fd = cluster_listen(any, bound, sizeof bound);
    if (fd < 0)
        return cli_error(l->sub, "%s", base_error());
    cluster_unlisten(fd, bound);
    snprintf(r->coord, sizeof r->coord, "%s", bound);
    l->coord = r->coord;
    return 0;
}

/* Choose the nodes of the standing cluster that start the new nodes. This process itself starts the new nodes of this host (with r->pick
 * only node 0), except in an emulated cluster. */
static int choose_standing(struct launch *l, struct hosts *r, const json_t *status)
{
    const json_t *nodes = json_object_get(status, "nodes");
    json_int_t here = json_integer_value(json_object_get(status, "control_node"));
    const bool emulated = r->emulated = json_is_true(json_object_get(status, "emulated"));
    uint32_t up[WEFT_MAX_NODES], count = 0;
    const char *names[WEFT_MAX_NODES];
    size_t i;
    json_t *o;
    json_array_foreach (nodes, i, o) {
        json_int_t number = json_integer_value(json_object_get(o, "node"));
        const char *state = json_string_value(json_object_get(o, "state"));
        if (!state || strcmp(state, "up") != 0 || number < 0 || number >= WEFT_MAX_NUMBERS || count == WEFT_MAX_NODES)
            continue;
        names[count] = json_string_value(json_object_get(o, "host"));
        up[count++] = (uint32_t)number;
    }
    for (uint32_t k = 0; k < count; k++) /* makes the node of this host the first */
        if (up[k] == (uint32_t)here) {
            const char *name = names[k];
            up[k] = up[0];
            names[k] = names[0];
            up[0] = (uint32_t)here;
            names[0] = name;
        }
    if (!count)
        return cli_error(l->sub, "no node of the standing cluster answers: see `weft status` and `weft logs`");
    l->nodes = l->nodes ? l->nodes : count;
    r->hosts = calloc(l->nodes, sizeof *r->hosts);
    r->named = calloc(l->nodes, sizeof *r->named);
    for (uint32_t k = 0; r->hosts && r->named && k < l->nodes; k++) {
        char number[16];
        uint32_t standing = r->pick ? r->pick[k] : up[k % count];
        const char *name = r->pick ? NULL : names[k % count];
        r->named[k] = (struct hosts_named){name ? strdup(name) : NULL, standing};
        snprintf(number, sizeof number, "%u", standing);
        if ((r->pick ? k == 0 : k % count == 0) && standing == (uint32_t)here && !emulated)
            continue;
        if (!(r->hosts[k] = strdup(number)))
            return cli_error(l->sub, "no memory for %u nodes" BASE_MEMORY_HINT, l->nodes);
    }
    l->ssh = (const char *const *)r->hosts;
    return r->hosts && r->named ? 0 : cli_error(l->sub, "no memory for %u nodes" BASE_MEMORY_HINT, l->nodes);
}

int hosts_apply_cluster(struct launch *l, struct hosts *r, const char *cluster)
{
    struct control_request q = {.head = {.what = CONTROL_STATUS, .flags = CONTROL_WITHOUT_LINKS}};
    struct cluster_hostfile *h = NULL;
    const struct cluster_hostfile none = {.count = 0};
    char *text = NULL;
    int status = standing_text(l->sub, cluster, &q, &text);
    json_t *o = status ? NULL : json_loads(text, 0, NULL);
    const char *name = json_string_value(json_object_get(o, "cluster")), *path = json_string_value(json_object_get(o, "hostfile"));
    const char *coord = json_string_value(json_object_get(o, "coord"));
    free(text);
    if (!status && (!name || !coord || strlen(name) >= sizeof r->cluster))
        status = cli_error(l->sub, "the standing cluster's answer is invalid; run the same version of weft on all hosts");
    if (!status)
        status = choose_standing(l, r, o);
    if (!status && path && strncmp(path, "/dev/fd/", 8) != 0 && cluster_hostfile_read(&h, path))
        status = cli_error(l->sub, "%s", base_error());
    if (!status) {
        snprintf(r->cluster, sizeof r->cluster, "%s", name);
        hosts_set_settings(json_object_get(o, "settings"), h);
        status = tell_settings(r, l, &none);
    }
    if (!status && strncmp(coord, "unix:", 5) != 0)
        status = choose_coord(l, r, coord[0] || !h ? coord : h->coord ? h->coord : "");
    if (!status) {
        l->cluster = r->cluster;
        l->make_secret = true;
        l->told = (const char *const *)r->told;
        l->self = self_path(r->self, sizeof r->self);
        l->weft = l->weft ? l->weft : l->self;
    }
    if (h)
        cluster_hostfile_free(h);
    json_decref(o);
    return status;
}

int hosts_apply_list(struct launch *l, struct hosts *r, char *const *names, uint32_t count)
{
    const struct cluster_hostfile none = {.count = 0};
    const char *secret = getenv("WEFT_SECRET");
    int status = tell_settings(r, l, &none);
    if (!status && secret && secret[0])
        status = hosts_tell(r, l, "WEFT_SECRET", secret, strlen(secret));
    r->hosts = calloc(count, sizeof *r->hosts);
    for (uint32_t i = 0; i < count && r->hosts && !status; i++)
        if (!(r->hosts[i] = strdup(names[i])))
            status = cli_error(l->sub, "no memory for %u hosts" BASE_MEMORY_HINT, count);
    if (!r->hosts)
        status = cli_error(l->sub, "no memory for %u hosts" BASE_MEMORY_HINT, count);
    l->nodes = count;
    l->ssh = (const char *const *)r->hosts;
    l->told = (const char *const *)r->told;
    l->self = self_path(r->self, sizeof r->self);
    l->weft = l->weft ? l->weft : l->self;
    return status;
}

const char *hosts_file(const char *option)
{
    return option ? option : hosts_is_set("WEFT_HOSTFILE") ? getenv("WEFT_HOSTFILE") : NULL;
}

int hosts_apply(struct launch *l, struct hosts *h, const char *hostfile)
{
    if (cluster_secret_check()) /* an empty secret is an error; do not replace it by a new secret */
        return cli_error(l->sub, "%s", base_error());
    l->make_secret = !hosts_is_set("WEFT_SECRET") && !hosts_is_set("WEFT_SECRET_FILE");
    int status = hostfile ? apply_hostfile(l, h, hostfile) : 0;
    const char *self = self_path(h->self, sizeof h->self);
    l->self = self;
    l->weft = l->weft ? l->weft : self;
    return status;
}
