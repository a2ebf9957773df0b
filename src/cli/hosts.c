/* SPDX-License-Identifier: MIT
 *
 * Applies the hostfile to a launch: how many nodes there are, which of them are on other hosts, and which settings those must get.
 */
#include "cli/hosts.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cluster/cluster.h"

extern char **environ;

static bool is_own_address(const char *text)
{
    struct in6_addr wanted;
    char bare[INET6_ADDRSTRLEN + 1];
    size_t n = strcspn(text, "%"); /* without the interface, as in fe80::1%en1 */
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
        return cli_error(l->sub, "no memory for the environment of nodes on other hosts");
    memcpy(text, name, name_len);
    text[name_len] = '=';
    memcpy(text + name_len + 1, value, len);
    text[name_len + 1 + len] = '\0';
    r->told[r->count++] = text;
    return 0;
}

/* Pass this host's settings to nodes on other hosts, including those from the hostfile, which those hosts need not have. Settings that
 * differ from node to node are set elsewhere, and so is the secret, whose file those hosts need not have either. */
static int tell_settings(struct hosts *r, const struct launch *l, const struct cluster_hostfile *h)
{
    static const char *const not_these[] = {"WEFT_RANK",   "WEFT_SIZE",        "WEFT_COORD", "WEFT_HOSTFILE",
                                            "WEFT_SECRET", "WEFT_SECRET_FILE", "WEFT_SSH"};
    int status = 0;
    for (char **e = environ; *e && !status; e++) {
        size_t n = strcspn(*e, "=");
        bool pass = strncmp(*e, "WEFT_", 5) == 0 && (*e)[n];
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
        char name[64] = "WEFT_";
        size_t n = strlen(name);
        for (const char *p = h->settings[i].name; *p && n + 1 < sizeof name; p++)
            name[n++] = (char)toupper((unsigned char)*p);
        name[n] = '\0';
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
        status = cli_error(l->sub, "the secret has a zero byte, which cannot be passed on to other hosts");
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
    for (unsigned i = 0; i < r->count; i++)
        free(r->told[i]);
    free(r->hosts);
}

/* A pipe can be read only once, but every node on this host reads the hostfile. So copy it to an unlinked file that they inherit. `*path`
 * becomes the path of that file. */
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

/* Apply the hostfile: the number of nodes, which of them are on other hosts, and whether it names a secret. */
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
    for (uint32_t i = 0; i < h->count && r->hosts && !status; i++) {
        const struct cluster_host *host = &h->hosts[i];
        if (hosts_is_here(host))
            continue;
        const char *name = host->ssh ? host->ssh : host->ips[0];
        r->hosts[i] = strdup(name);
        elsewhere = true;
        if (!r->hosts[i] || name[0] == '-' || !name[0])
            status = cli_error(l->sub, "hostfile %s: node %u: '%s' is not the name of a host", path, i, name);
    }
    if (!r->hosts)
        status = cli_error(l->sub, "no memory for %u hosts", h->count);
    if (!status && elsewhere && l->softverbs)
        status = cli_usage(l->sub, "--softverbs emulates hosts on this one, but hostfile %s has other hosts", path);
    if (!status && elsewhere)
        status = hosts_prepare_remote(r, l, h, path);
    cluster_hostfile_free(h);
    return status;
}

/* Path of this command, at which other machines are expected to have it, too. */
static const char *own_path(char *buf, size_t len)
{
    ssize_t n = readlink("/proc/self/exe", buf, len - 1);
    if (n <= 0)
        n = snprintf(buf, len, "weft");
    buf[n] = '\0';
    return buf;
}

const char *hosts_file(const char *option)
{
    return option ? option : hosts_is_set("WEFT_HOSTFILE") ? getenv("WEFT_HOSTFILE") : NULL;
}

int hosts_apply(struct launch *l, struct hosts *h, const char *hostfile)
{
    if (cluster_secret_check()) /* an empty secret is an error; do not replace it by a new one */
        return cli_error(l->sub, "%s", base_error());
    l->make_secret = !hosts_is_set("WEFT_SECRET") && !hosts_is_set("WEFT_SECRET_FILE");
    int status = hostfile ? apply_hostfile(l, h, hostfile) : 0;
    const char *self = own_path(h->self, sizeof h->self);
    l->self = self;
    l->weft = l->weft ? l->weft : self;
    return status;
}
