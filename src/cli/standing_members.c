/* SPDX-License-Identifier: MIT
 *
 * What a node needs to join the standing cluster: addresses of members, the secret, and settings. `weft up --add` asks the control node for
 * all these. The launcher of this host reads the addresses from a file, because it may have to start a node when no node of this host is
 * left.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/standing.h"
#include "cluster/cluster.h"

#define MEMBERS_MAX 16u  /* maximum number of addresses in the list; it is enough if one of these hosts answers */
#define MEMBERS_LEN 480u /* longest list; the list becomes WEFT_JOIN */

static bool has_address(const char *list, const char *address)
{
    size_t n = strlen(address);
    for (const char *p = strstr(list, address); p; p = strstr(p + 1, address))
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == '\0'))
            return true;
    return false;
}

static void add_address(char *list, size_t len, const char *address)
{
    size_t n = strlen(list);
    if (address[0] && !has_address(list, address) && n + strlen(address) + 2 < len)
        snprintf(list + n, len - n, "%s%s", n ? "," : "", address);
}

/* List the addresses of this node and of the newest other nodes, separated by commas. Returns whether all these nodes have answered. */
static bool members_list(weft_node *w, struct jobs *jobs, char *list, size_t len)
{
    const char *own = getenv("WEFT_GROW");
    uint32_t size = weft_size(w), count = 0, others[MEMBERS_MAX];
    struct desk_page *pages[MEMBERS_MAX];
    list[0] = '\0';
    add_address(list, len, own ? own : "");
    if (strncmp(list, "unix:", 5) == 0)
        return true; /* all nodes are on this host, and have the same Unix socket */
    for (uint32_t i = size; i-- > 0 && count < MEMBERS_MAX;)
        if (i != weft_rank(w) && weft_alive(w, i))
            others[count++] = i;
    uint32_t silent = jobs_desks(jobs, others, count, false, pages);
    for (uint32_t i = 0; i < count; i++) {
        if (pages[i] && cluster_address_check(pages[i]->door) == 0)
            add_address(list, len, pages[i]->door);
        free(pages[i]);
    }
    return silent == 0;
}

bool members_write(weft_node *w, struct jobs *jobs, const struct standing_place *place)
{
    char list[MEMBERS_LEN], temporary[STANDING_PATH + 8];
    bool all = members_list(w, jobs, list, sizeof list);
    snprintf(temporary, sizeof temporary, "%s.new", place->members);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool written = f && fprintf(f, "%s\n", list) > 0;
    if (f)
        written = fclose(f) == 0 && written;
    else if (fd >= 0)
        close(fd);
    return written && rename(temporary, place->members) == 0 && all;
}

json_t *members_answer(weft_node *w, struct jobs *jobs)
{
    struct cluster_settings s;
    char list[MEMBERS_LEN];
    const char *coord = getenv("WEFT_COORD"), *hostfile = getenv("WEFT_HOSTFILE"), *pool = getenv("WEFT_POOL"), *door = getenv("WEFT_GROW");
    if (cluster_settings_resolve(&s, NULL))
        return NULL;
    members_list(w, jobs, list, sizeof list);
    json_t *secret = s.secret ? json_stringn((const char *)s.secret, s.secret_len) : json_null();
    bool fits = secret && !(s.secret && memchr(s.secret, 0, s.secret_len));
    cluster_settings_clear(&s);
    if (!fits) {
        json_decref(secret);
        base_fail(
            -EINVAL,
            "the cluster's secret cannot be passed on to new nodes, because it contains a zero byte or is not UTF-8: copy the secret's "
            "file to the new host, set WEFT_SECRET_FILE, WEFT_JOIN and WEFT_GROW there, and run `weft up --here` (see weft-up(1))");
        return NULL;
    }
    return json_pack("{so ss ss ss ss ss sI sb so}", "secret", secret, "members", list, "door", door ? door : "", "coord",
                     coord ? coord : "", "hostfile", hostfile ? hostfile : "", "pool", pool ? pool : "", "numbers",
                     (json_int_t)weft_size(w), "emulated", getenv("SOFTVERBS_HOST") != NULL, "settings", standing_settings());
}
