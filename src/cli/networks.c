/* SPDX-License-Identifier: MIT
 *
 * weft devices --networks: the providers of libfabric on this host, and what the transport ofi would do with each.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/doctor.h"
#include "cli/networks.h"
#include "cluster/cluster.h"
#include "fabric/ofi/provider.h"

#define USE 512u

/* The providers of this host, and which of them its nodes would use with the present settings. */
struct networks {
    const struct ofi_library *lib;
    char provider[256], interface[256]; /* WEFT_OFI_PROVIDER and WEFT_OFI_INTERFACE; "": not set */
    struct ofi_listed *list;
    uint32_t count;
    const struct ofi_listed *best; /* the best provider that the settings allow; NULL: none */
};

static int networks_settings(struct networks *n)
{
    struct cluster_setting_row rows[CLUSTER_SETTINGS_MAX];
    int count = cluster_settings_list(rows, CLUSTER_SETTINGS_MAX, NULL, false);
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].name, "ofi_provider") == 0)
            snprintf(n->provider, sizeof n->provider, "%s", rows[i].value);
        if (strcmp(rows[i].name, "ofi_interface") == 0)
            snprintf(n->interface, sizeof n->interface, "%s", rows[i].value);
    }
    return count < 0 ? count : 0;
}

static int networks_find(struct networks *n)
{
    const struct ofi_want want = {.provider = n->provider, .interface = n->interface, .address = ""};
    int rc = ofi_load(&n->lib);
    rc = rc ? rc : ofi_list(n->lib, &want, &n->list);
    n->count = rc < 0 ? 0 : (uint32_t)rc;
    for (uint32_t i = 0; i < n->count; i++) {
        const struct ofi_listed *e = &n->list[i];
        if (e->use == OFI_USED && (!n->best || (n->provider[0] && e->order < n->best->order))) /* else they are sorted */
            n->best = e;
    }
    return rc < 0 ? rc : 0;
}

static bool networks_local(const struct ofi_listed *e)
{
    return strncmp(e->address, "127.", 4) == 0 || strcmp(e->address, "[::1]") == 0;
}

/* Whether the provider's address is link-local, so that only hosts in the same network can reach it. */
static bool networks_near(const struct ofi_listed *e)
{
    return strncmp(e->address, "[fe80:", 6) == 0 || strncmp(e->address, "169.254.", 8) == 0;
}

/* Describes when nodes use this provider. Two nodes use the first provider of the list that both have, at the addresses by which the nodes
 * join. */
static void networks_use(const struct networks *n, const struct ofi_listed *e, char *out)
{
    bool used = false, srx = strcmp(e->provider, OFI_VERBS_RXM) == 0;
    switch (e->use) {
    case OFI_OTHER_PROVIDER: snprintf(out, USE, "not used: WEFT_OFI_PROVIDER is %s", n->provider); break;
    case OFI_OTHER_INTERFACE: snprintf(out, USE, "not used: WEFT_OFI_INTERFACE is %s", n->interface); break;
    case OFI_LACKS_SRX: snprintf(out, USE, "not used without FI_OFI_RXM_USE_SRX=1"); break;
    case OFI_BY_NAME: snprintf(out, USE, "only with WEFT_OFI_PROVIDER=%s%s", e->provider, srx ? " and FI_OFI_RXM_USE_SRX=1" : ""); break;
    case OFI_USED: used = true;
    }
    bool best = used && strcmp(e->provider, n->best->provider) == 0, local = used && networks_local(e);
    bool name = used && !best && !local && !n->provider[0];
    if (local)
        snprintf(out, USE, "ofi, to nodes of this host only");
    else if (best)
        snprintf(out, USE, "ofi, to nodes that no better transport reaches");
    else if (used)
        snprintf(out, USE, "ofi, to nodes that do not have %s", n->best->provider);
    size_t at = strlen(out);
    snprintf(out + at, USE - at, "%s%s%s%s%s%s", used && networks_near(e) && !n->interface[0] ? ", if they join by this address" : "",
             name ? "; or with WEFT_OFI_PROVIDER=" : "", name ? e->provider : "",
             e->traits.plain && (used || e->use == OFI_BY_NAME) ? "; in the clear" : "",
             e->traits.locks ? "; a node that is killed may make others hang or crash" : "",
             e->traits.tried ? "" : "; weft supports it, but was never run with it");
}

static const char *networks_version(const struct networks *n, char out[16])
{
    uint32_t v = n->lib->version();
    snprintf(out, 16, "%u.%u", FI_MAJOR(v), FI_MINOR(v));
    return out;
}

static json_t *networks_json(const struct networks *n)
{
    json_t *all = json_array();
    char use[USE], version[16];
    for (uint32_t i = 0; i < n->count; i++) {
        const struct ofi_listed *e = &n->list[i];
        networks_use(n, e, use);
        json_array_append_new(all,
                              json_pack("{s:s, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:s, s:s, s:s}", "provider", e->provider, "interface",
                                        e->interface, "address", e->address, "rma", e->traits.rma, "clear", e->traits.plain, "by_itself",
                                        e->traits.rank < OFI_NEVER, "tried", e->traits.tried, "used", e->use == OFI_USED, "use", use,
                                        "version", networks_version(n, version), "library", n->lib->path));
    }
    return all;
}

static int networks_lines(const struct networks *n)
{
    static const struct cli_column columns[] = {
        {"provider", false}, {"interface", false}, {"address", false}, {"rma", false}, {"use", false}};
    struct cli_table *t = cli_table_new(columns, 5);
    char use[USE], version[16];
    int rc = t ? 0 : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < n->count; i++) {
        const struct ofi_listed *e = &n->list[i];
        networks_use(n, e, use);
        const char *cells[] = {e->provider, e->interface[0] ? e->interface : "-", e->address[0] ? e->address : "-",
                               e->traits.rma ? "yes" : "no", use};
        rc = cli_table_add(t, cells);
    }
    printf("libfabric %s, %s\n\n", networks_version(n, version), n->lib->path);
    return cli_table_end("devices", t, rc, "networks");
}

/* The names of all providers in the list, with commas between them. */
static void networks_names(const struct networks *n, char *out, size_t room)
{
    const char *before = "";
    out[0] = '\0';
    for (uint32_t i = 0; i < n->count; before = n->list[i++].provider) { /* the list is sorted by provider */
        size_t at = strlen(out);
        if (strcmp(n->list[i].provider, before) != 0)
            snprintf(out + at, room - at, "%s%s", at ? ", " : "", n->list[i].provider);
    }
}

/* Says which providers in WEFT_OFI_PROVIDER libfabric does not have. Returns the exit status: 1 if it has none of them. */
static int networks_unknown(const struct networks *n)
{
    char name[OFI_PROVIDER_NAME], names[USE];
    bool any = false, known = false;
    networks_names(n, names, sizeof names);
    for (const char *p = n->provider; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t len = strcspn(p, ",");
        snprintf(name, sizeof name, "%.*s", (int)len, p);
        bool has = len == 0 || (len < sizeof name && ofi_has(n->lib, name));
        if (!has)
            (void)cli_error(
                "devices",
                "WEFT_OFI_PROVIDER: this libfabric has no provider '%.*s' that weft could use: name one of %s, or another libfabric in "
                "WEFT_OFI_LIBRARY",
                (int)len, p, names);
        any = any || len;
        known = known || (len && has);
    }
    return any && !known ? CLI_FAILED : 0;
}

json_t *cli_networks_json(void)
{
    struct networks n = {.count = 0}; /* the settings are not read: doctor has them in another fact (DOCTOR_LIMITS) */
    json_t *j = networks_find(&n) ? json_pack("{s:s}", "error", base_error()) : networks_json(&n);
    free(n.list);
    return j;
}

int cli_networks(bool as_json)
{
    struct networks n = {.count = 0};
    if (networks_settings(&n) || networks_find(&n))
        return cli_error("devices", "%s", base_error());
    int status = as_json ? cli_json_print("devices", networks_json(&n)) : networks_lines(&n);
    int unknown = networks_unknown(&n);
    free(n.list);
    return status ? status : unknown;
}

void cli_networks_better(char *out, size_t len)
{
    struct networks n = {.count = 0};
    bool better = networks_find(&n) == 0 && n.list[0].traits.rank < OFI_NEVER && !n.list[0].traits.tcp;
    snprintf(out, len, "%s", better ? n.list[0].provider : "");
    free(n.list);
}
