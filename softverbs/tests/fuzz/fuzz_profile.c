/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a profile: it is read, or refused with a message, and never crashes. A profile that was read fits into the fabric's tables,
 * and printing and reading it again gives the same profile.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/shared.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sv_profile p, again;
    struct sv_why why = {""};
    int rc = sv_profile_parse((const char *)data, size, "fuzz", &p, &why);
    if (rc) {
        if (rc > 0 || strncmp(why.text, "fuzz:", 5) != 0)
            abort();
        return 0;
    }
    if (p.real_qp >= SF_QPS || p.real_mr >= SF_MRS || p.real_pd >= SF_PDS || p.max_cq >= SF_CQS || p.max_srq >= SF_SRQS ||
        p.depth_step_count > SV_STEPS || !memchr(p.name, 0, sizeof p.name) || !memchr(p.firmware, 0, sizeof p.firmware))
        abort();
    char *json = sv_profile_json(&p);
    if (!json || sv_profile_parse(json, strlen(json), "again", &again, &why))
        abort();
    /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): all of a profile, padding too, is zero before it is filled */
    if (memcmp(&p, &again, sizeof p) != 0)
        abort();
    free(json);
    return 0;
}
