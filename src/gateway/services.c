/* SPDX-License-Identifier: MIT
 *
 * The table of all services. A new service is added here.
 */
#include "gateway/gateway.h"

#include <string.h>

const struct gateway_service *const gateway_services[] = {&gateway_process, &gateway_name, &gateway_net, &gateway_file, NULL};

int gateway_services_read(const char *text, uint64_t *out)
{
    *out = 0;
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        const struct gateway_service *found = NULL;
        for (const struct gateway_service *const *s = gateway_services; *s; s++)
            if (strlen((*s)->name) == len && memcmp((*s)->name, p, len) == 0)
                found = *s;
        if (!found)
            return base_fail(-EINVAL,
                             "WEFT_SERVE='%s': the list names a service that does not exist; set it to some of process, name, net and "
                             "file, separated by commas",
                             text);
        *out |= UINT64_C(1) << found->number;
        p += len;
        if (*p == ',' && p[1])
            p++;
        else if (*p)
            return base_fail(
                -EINVAL, "WEFT_SERVE='%s': the list ends with a comma; set it to some of process, name, net and file, separated by commas",
                text);
    }
    return 0;
}
