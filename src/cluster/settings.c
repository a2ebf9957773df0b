/* SPDX-License-Identifier: MIT
 *
 * Resolves settings from their sources. Precedence: option > environment > hostfile > default. If neither option nor environment sets rank
 * or size, a launcher that speaks PMIx sets both.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/join.h"
#include "cluster/pmix.h"
#include "cluster/settings.h"

/* --- sources --- */

void settings_take(struct found *f, const char *text, enum cluster_source source, const char *where, const char *what)
{
    f->text = text;
    f->source = source;
    snprintf(f->from, sizeof f->from, "%s%s%s", where, what ? " " : "", what ? what : "");
}

static void settings_take_option(struct found *f, const char *text)
{
    settings_take(f, text, CLUSTER_OPTION, "option", NULL);
}

static void take_number(struct found *f, long long value, const char *unit)
{
    snprintf(f->own, sizeof f->own, "%lld%s", value, unit);
    settings_take_option(f, f->own);
}

static void from_config(struct found *found, const weft_config *c)
{
    if (c->size) {
        take_number(&found[RANK], c->rank, "");
        take_number(&found[SIZE], c->size, "");
    }
    if (c->coord)
        settings_take_option(&found[COORD], c->coord);
    if (c->grow)
        settings_take_option(&found[GROW], c->grow);
    if (c->join)
        settings_take_option(&found[JOIN], c->join);
    if (c->hostfile)
        settings_take_option(&found[HOSTFILE], c->hostfile);
    if (c->secret)
        settings_take_option(&found[SECRET_TEXT], c->secret);
    if (c->transport)
        settings_take_option(&found[TRANSPORT], c->transport);
    if (c->pool_bytes) {
        snprintf(found[POOL].own, sizeof found[POOL].own, "%llu", (unsigned long long)c->pool_bytes);
        settings_take_option(&found[POOL], found[POOL].own);
    }
    if (c->pool_flags) {
        settings_take_option(&found[POOL_HUGE], c->pool_flags & WEFT_POOL_HUGE ? "yes" : "no");
        settings_take_option(&found[POOL_LOCK], c->pool_flags & WEFT_POOL_LOCK ? "yes" : "no");
        settings_take_option(&found[POOL_PREFAULT], c->pool_flags & WEFT_POOL_PREFAULT ? "yes" : "no");
    }
    if (c->deadline_ns)
        take_number(&found[DEADLINE], c->deadline_ns, "ns");
    if (c->join_timeout_ns)
        take_number(&found[JOIN_TIMEOUT], c->join_timeout_ns, "ns");
    if (c->reconnect_ns)
        take_number(&found[RECONNECT], c->reconnect_ns < 0 ? 0 : c->reconnect_ns, "ns");
}

static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL; /* an empty variable counts as unset */
}

static void from_environment(struct found *found)
{
    for (int i = 0; i < COUNT; i++) {
        const char *name = settings_table[i].variable, *value = variable(name);
        /* Ignore MLX's variables for the hostfile if the size comes from an option or from WEFT_SIZE. In that case MLX did not start this
         * program, and MLX's hostfile may describe another cluster. */
        bool theirs = i != HOSTFILE || (!found[SIZE].text && !variable(settings_table[SIZE].variable));
        for (int k = 0; !value && theirs && k < 4; k++) {
            name = settings_table[i].also[k];
            value = variable(name);
        }
        if (value && !found[i].text)
            settings_take(&found[i], value, CLUSTER_ENVIRONMENT, "environment", name);
    }
    if (!found[SECRET_TEXT].text && getenv(settings_table[SECRET_TEXT].variable))
        settings_take(&found[SECRET_TEXT], "", CLUSTER_ENVIRONMENT, "environment", settings_table[SECRET_TEXT].variable);
}

static void from_hostfile(struct found *found, const struct cluster_hostfile *h)
{
    for (uint32_t k = 0; k < h->setting_count; k++)
        for (int i = 0; i < COUNT; i++)
            if (!found[i].text && strcmp(h->settings[k].name, settings_table[i].name) == 0)
                settings_take(&found[i], h->settings[k].value, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
    if (h->coord && !found[COORD].text)
        settings_take(&found[COORD], h->coord, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
}

/* Get rank and size from mpirun, prterun or srun by PMIx, unless rank or size is already set. */
static int from_launcher(struct cluster_settings *out, struct found *found)
{
    int64_t wait = 30 * WEFT_SECOND;
    if (found[RANK].text || found[SIZE].text || found[JOIN].text || !launcher_is_here())
        return 0;
    const char *library = found[PMIX_LIBRARY].text ? found[PMIX_LIBRARY].text : "";
    int rc = launcher_open(&out->launcher, library, base_deadline(wait));
    if (rc)
        return rc;
    snprintf(found[RANK].own, sizeof found[RANK].own, "%u", launcher_rank(out->launcher));
    snprintf(found[SIZE].own, sizeof found[SIZE].own, "%u", launcher_size(out->launcher));
    settings_take(&found[RANK], found[RANK].own, CLUSTER_PMIX, "PMIx", NULL);
    settings_take(&found[SIZE], found[SIZE].own, CLUSTER_PMIX, "PMIx", NULL);
    out->rank = launcher_rank(out->launcher);
    out->size = launcher_size(out->launcher);
    return 0;
}

/* --- settings that depend on each other --- */

/* Set the address of node 0 from the first host of the hostfile. */
static int coord_from_hosts(struct cluster_settings *out, struct found *found)
{
    const struct cluster_host *first = &out->hosts->hosts[0];
    const char *host = first->ip_count ? first->ips[0] : first->ssh;
    if (!host)
        return base_fail(-EINVAL,
                         "hostfile %s: host 0 has neither \"ips\" nor \"ssh\", so node 0 has no address: "
                         "add one of them, or set %s to HOST:PORT",
                         found[HOSTFILE].text, settings_table[COORD].variable);
    bool bare_ipv6 = strchr(host, ':') && host[0] != '[';
    int n = snprintf(out->coord, sizeof out->coord, bare_ipv6 ? "[%s]:%d" : "%s:%d", host, CLUSTER_PORT);
    if (n < 0 || (size_t)n >= sizeof out->coord || cluster_address_check(out->coord))
        return base_fail(-EINVAL, "hostfile %s: host 0: '%s' is not an address: set %s to HOST:PORT", found[HOSTFILE].text, host,
                         settings_table[COORD].variable);
    settings_take(&found[COORD], out->coord, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
    return 0;
}

/* Read rank, size and coord, which depend on each other and on the hostfile. `is_node`: the caller is a node, so a missing value is an
 * error. */
static int read_place(struct cluster_settings *out, struct found *found, bool is_node)
{
    int64_t rank = 0, size = 1;
    int rc = found[SIZE].text ? settings_read_number(SIZE, &found[SIZE], &size) : 0;
    if (rc == 0 && found[RANK].text)
        rc = settings_read_number(RANK, &found[RANK], &rank);
    if (rc == 0 && found[COORD].text)
        rc = settings_read_address(COORD, &found[COORD], out->coord, sizeof out->coord);
    if (rc)
        return rc;
    if (is_node && found[JOIN].text) {
        enum id other = found[SIZE].text ? SIZE : RANK;
        if (found[other].text)
            return base_fail(-EINVAL,
                             "%s and %s are both set: a node that joins a running cluster gets its number from the cluster, so unset %s",
                             settings_table[JOIN].variable, settings_speaker(other, &found[other]), settings_speaker(other, &found[other]));
        out->coord[0] = '\0';
        out->size = 1;
        return 0;
    }
    if (out->hosts && !found[SIZE].text) {
        size = out->hosts->count;
        snprintf(found[SIZE].own, sizeof found[SIZE].own, "%u", out->hosts->count);
        settings_take(&found[SIZE], found[SIZE].own, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
    } else if (out->hosts && size != out->hosts->count) {
        return base_fail(-EINVAL, "%s='%s': expected %u, the number of nodes in hostfile %s", settings_speaker(SIZE, &found[SIZE]),
                         found[SIZE].text, out->hosts->count, found[HOSTFILE].text);
    }
    out->rank = (uint32_t)rank;
    out->size = (uint32_t)size;
    if (!is_node) {
        if (size > 1 && out->hosts && !found[COORD].text && coord_from_hosts(out, found))
            base_error_clear(); /* not an error here: only nodes need the address, and they report the error */
        return 0;
    }
    if (!found[SIZE].text && (found[COORD].text || rank > 0))
        return base_fail(-EINVAL,
                         "%s is set, but the number of nodes is not: set %s or %s, or start the program with "
                         "`weft run`",
                         settings_speaker(rank > 0 ? RANK : COORD, &found[rank > 0 ? RANK : COORD]), settings_table[SIZE].variable,
                         settings_table[HOSTFILE].variable);
    if (rank >= size)
        return settings_bad(RANK, &found[RANK], "a number below the number of nodes (WEFT_SIZE)");
    if (size == 1) {
        out->coord[0] = '\0';
        return 0;
    }
    if (!found[RANK].text)
        return base_fail(-EINVAL,
                         "the cluster has %lld nodes, but the number of this one is not set: set %s to a number from 0 "
                         "to %lld, or start the program with `weft run`",
                         (long long)size, settings_table[RANK].variable, (long long)size - 1);
    if (found[COORD].text)
        return 0;
    if (out->hosts)
        return coord_from_hosts(out, found);
    if (out->launcher)
        return 0; /* nothing to check: node 0 tells the other nodes its address */
    return base_fail(-EINVAL,
                     "the cluster has %lld nodes, but the address of node 0 is not set: set %s to HOST:PORT or "
                     "unix:PATH, or start the program with `weft run`",
                     (long long)size, settings_table[COORD].variable);
}

static int resolve(struct cluster_settings *out, struct found *found, const weft_config *config, bool is_node, bool launcher)
{
    memset(out, 0, sizeof *out);
    memset(found, 0, COUNT * sizeof *found);
    if (config)
        from_config(found, config);
    from_environment(found);

    int rc = launcher ? from_launcher(out, found) : 0;
    if (!rc && found[HOSTFILE].text)
        rc = cluster_hostfile_read(&out->hosts, found[HOSTFILE].text);
    if (rc && found[HOSTFILE].source == CLUSTER_ENVIRONMENT)
        rc = base_context(rc, "%s", settings_speaker(HOSTFILE, &found[HOSTFILE]));
    if (rc == 0 && out->hosts)
        from_hostfile(found, out->hosts);
    if (rc == 0)
        rc = read_place(out, found, is_node);
    if (rc == 0 && !found[JOIN_TIMEOUT].text) {
        /* The number of connections grows with the square of the number of nodes. Whole seconds, because the value is printed. */
        int64_t ns = 30 * WEFT_SECOND + (int64_t)out->size * out->size * 150 * WEFT_US;
        char *own = found[JOIN_TIMEOUT].own;
        snprintf(own, sizeof found[JOIN_TIMEOUT].own, "%llds", (long long)(ns / WEFT_SECOND));
        settings_take(&found[JOIN_TIMEOUT], own, CLUSTER_DEFAULT, "default", NULL);
    }
    /* All programs of a guard share the ten queue pairs of a device. So the default is one lane: a cable then takes two queue pairs instead
     * of four. */
    if (!found[TB_LANES].text && found[GUARD_SOCKET].text)
        settings_take(&found[TB_LANES], "32K:32", CLUSTER_DEFAULT, "default", "with WEFT_GUARD_SOCKET");
    for (int i = 0; i < COUNT; i++)
        if (!found[i].text)
            settings_take(&found[i], settings_table[i].fallback, CLUSTER_DEFAULT, "default", NULL);

    if (rc == 0)
        rc = settings_read_secret(found, out);
    for (enum id i = 0; rc == 0 && i < COUNT; i++)
        rc = settings_read(i, &found[i], out);
    if (rc == 0)
        rc = settings_read_lanes(&found[TB_LANES], out->fabric.lanes, &out->fabric.lane_count);
    if (rc == 0)
        rc = settings_read_rails(&found[RAILS], &out->fabric);
    if (rc) {
        rc = is_node ? cluster_failed(out, rc) : rc;
        cluster_settings_clear(out);
        return rc;
    }
    out->founders = out->size;
    out->fabric.bounded = found[DEADLINE].source != CLUSTER_DEFAULT;
    out->fabric.check_frames = strcmp(found[TB_CHECK].text, "frames") == 0;
    base_log_set(found[LOG].text);
    return 0;
}

int cluster_settings_resolve(struct cluster_settings *out, const weft_config *config)
{
    struct found found[COUNT];
    return resolve(out, found, config, true, true);
}

void cluster_settings_clear(struct cluster_settings *s)
{
    if (s->secret)
        sodium_memzero(s->secret, s->secret_len);
    free(s->secret);
    cluster_hostfile_free(s->hosts);
    launcher_close(s->launcher);
    join_entry_free(s->entry);
    memset(s, 0, sizeof *s);
}

int cluster_settings_list(struct cluster_setting_row *rows, uint32_t max, const weft_config *config, bool launcher)
{
    struct cluster_settings s;
    struct found found[COUNT];
    int rc = resolve(&s, found, config, false, launcher);
    if (rc)
        return rc;
    uint32_t n = max < COUNT ? max : COUNT;
    for (uint32_t i = 0; i < n; i++) {
        struct cluster_setting_row *row = &rows[i];
        row->name = settings_table[i].name;
        row->variable = settings_table[i].variable;
        row->default_text = settings_table[i].fallback;
        row->help = settings_table[i].help;
        snprintf(row->value, sizeof row->value, "%s", settings_table[i].kind == SECRET && found[i].text[0] ? "(set)" : found[i].text);
        snprintf(row->from, sizeof row->from, "%s", found[i].from);
    }
    cluster_settings_clear(&s);
    return (int)n;
}
