/* SPDX-License-Identifier: MIT
 *
 * Any bytes as the order that node 0 of a map job gives to nodes on other hosts: it is refused, or read completely; then writing it again
 * gives the same bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "map/order.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *bytes = malloc(size ? size : 1); /* allocated with exactly this length, so that a sanitizer detects reads beyond the end */
    struct map_order o;
    if (!bytes)
        return 0;
    if (size)
        memcpy(bytes, data, size);
    if (map_order_read(&o, bytes, size) == 0) {
        void *again;
        size_t len;
        if (o.argv[o.argc] || (o.kernel != NULL) == (o.argc != 0))
            abort();
        if (map_order_write(&o, &again, &len) == 0) {
            if (len != size || memcmp(again, bytes, len) != 0)
                abort();
            free(again);
        }
        map_order_free(&o);
    }
    free(bytes);
    return 0;
}
