/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a request on a standing cluster's control socket. The request is accepted or refused, without a crash. A refusal has an
 * error text. An accepted request has valid values, and is the same after it was written and read again.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(const char *const *list, uint32_t count, const uint8_t *data, size_t size)
{
    for (uint32_t i = 0; i < count; i++)
        if ((const uint8_t *)list[i] < data || (const uint8_t *)list[i] + strlen(list[i]) >= data + size)
            abort();
    if (list[count])
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct control_request r, again;
    struct control_frame f;
    void *payload;
    size_t bytes;
    base_error_clear();
    if (size >= sizeof f) {
        memcpy(&f, data, sizeof f);
        if (control_frame_fits(&f, size % 2) && f.bytes > CONTROL_PIECE_MAX)
            abort();
    }
    int rc = control_parse(&r, data, size);
    if (rc) {
        if (r.memory || rc != -EPROTO || !base_error()[0])
            abort();
        return 0;
    }
    check_list(r.hosts, r.head.hosts, data, size);
    check_list(r.arguments, r.head.arguments, data, size);
    check_list(r.changes, r.head.changes, data, size);
    if ((r.head.flags & CONTROL_WITH_INPUT) && (r.head.flags & CONTROL_DETACHED))
        abort();
    if (r.head.flags & CONTROL_TERMINAL ? !(r.head.flags & CONTROL_WITH_INPUT) : r.head.window != 0)
        abort();
    if (r.head.what == CONTROL_EXEC && !r.arguments[0][0])
        abort();
    if (control_write(&r, &payload, &bytes) || bytes != size || control_parse(&again, payload, bytes) ||
        memcmp(&again.head, &r.head, sizeof r.head) != 0)
        abort();
    control_request_free(&again);
    control_request_free(&r);
    free(payload);
    return 0;
}
