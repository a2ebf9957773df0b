/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a hostfile: it is accepted or refused, without a crash. A refusal has an error text, and accepted values are in range.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cluster_hostfile *h;
    base_error_clear();
    int rc = cluster_hostfile_parse(&h, (const char *)data, size, "fuzz");
    if (rc) {
        if (h || rc != -EINVAL || strncmp(base_error(), "fuzz:", 5) != 0)
            abort();
        return 0;
    }
    if (h->count < 1 || h->count > WEFT_MAX_NODES || h->machines > h->count)
        abort();
    for (uint32_t i = 0; i < h->count; i++) {
        const struct cluster_host *host = &h->hosts[i];
        if (host->machine >= h->machines || (host->rdma_count && host->rdma_count != h->count))
            abort();
        if (host->rdma_count && host->rdma[i])
            abort();
        for (uint32_t k = 0; k < host->ip_count; k++)
            if (!host->ips[k][0])
                abort();
    }
    cluster_hostfile_free(h);
    return 0;
}
