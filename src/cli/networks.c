/* SPDX-License-Identifier: MIT
 *
 * weft devices --networks: the providers of libfabric on this host, and what the transport ofi would do with each.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/doctor.h"
#include "cli/networks.h"
#include "fabric/ofi/provider.h"

/* What two nodes would use: the first provider of the list that both have, at the addresses by which the nodes join. */
static void networks_use(const struct ofi_listed *e, const struct ofi_listed *first, char *out, size_t len)
{
    if (e->traits.rank == OFI_NEVER)
        snprintf(out, len, "only with WEFT_OFI_PROVIDER=%s", e->provider);
    else if (strcmp(e->provider, first->provider) == 0)
        snprintf(out, len, "ofi, to nodes that no better transport reaches%s", e->traits.plain ? "; in the clear" : "");
    else
        snprintf(out, len, "ofi, to nodes that do not have %s; or with WEFT_OFI_PROVIDER=%s", first->provider, e->provider);
    size_t n = strlen(out);
    if (!e->traits.tried)
        snprintf(out + n, len - n, "; weft supports it, but was never run with it");
}

static json_t *networks_json(const struct ofi_listed *list)
{
    json_t *all = json_array();
    for (uint32_t i = 0; list[i].provider[0]; i++) {
        char use[208];
        networks_use(&list[i], &list[0], use, sizeof use);
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:b, s:b, s:b, s:b, s:s}", "provider", list[i].provider, "interface",
                                             list[i].interface, "address", list[i].address, "rma", list[i].traits.rma, "clear",
                                             list[i].traits.plain, "by_itself", list[i].traits.rank < OFI_NEVER, "tried",
                                             list[i].traits.tried, "use", use));
    }
    return all;
}

static int networks_lines(const struct ofi_listed *list)
{
    static const struct cli_column columns[] = {
        {"provider", false}, {"interface", false}, {"address", false}, {"rma", false}, {"use", false}};
    struct cli_table *t = cli_table_new(columns, 5);
    int rc = t ? 0 : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && list[i].provider[0]; i++) {
        char use[208];
        networks_use(&list[i], &list[0], use, sizeof use);
        const char *cells[] = {list[i].provider, list[i].interface[0] ? list[i].interface : "-", list[i].address[0] ? list[i].address : "-",
                               list[i].traits.rma ? "yes" : "no", use};
        rc = cli_table_add(t, cells);
    }
    return cli_table_end("devices", t, rc, "networks");
}

json_t *cli_networks_json(void)
{
    const struct ofi_library *lib;
    struct ofi_listed list[OFI_LISTED_MAX];
    if (ofi_load(&lib) || ofi_list(lib, list))
        return json_pack("{s:s}", "error", base_error());
    return networks_json(list);
}

int cli_networks(bool as_json)
{
    const struct ofi_library *lib;
    struct ofi_listed list[OFI_LISTED_MAX];
    if (ofi_load(&lib) || ofi_list(lib, list))
        return cli_error("devices", "%s", base_error());
    return as_json ? cli_json_print("devices", networks_json(list)) : networks_lines(list);
}
