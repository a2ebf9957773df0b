/* SPDX-License-Identifier: MIT
 *
 * Messages of a peer of the ofi transport: at joining (connect.c), and later about its endpoint (watch.c). If a message is accepted, its
 * fields are within the bounds that the rest of the code relies on. fuzz_frames.c tests the frames.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/ofi/ofi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ofi_hello h = {0};
    memcpy(&h, data, size < sizeof h ? size : sizeof h);
    if (ofi_hello_valid(&h, 1, 2, 1 << 16)) {
        must(h.rank == 1 && h.pool_bytes >= 1 << 16 && h.pool_bytes <= WEFT_MAX_POOL_BYTES);
        must(h.address_bytes && h.address_bytes <= sizeof h.address && strlen(h.provider) < sizeof h.provider);
        must(h.fixed <= 1);
        /* the segments cover the whole pool, and the number of keys is bounded */
        must(!h.keys || (h.pool_bytes - 1) >> h.shift == h.keys - 1);
        must((uint64_t)h.keys * sizeof(uint64_t) <= UINT64_C(1) << 24);
    }
    struct ofi_offer offers[2] = {{0}};
    memcpy(&offers[0], data, size < sizeof offers[0] ? size : sizeof offers[0]);
    if (ofi_offer_valid(&offers[0])) {
        must(offers[0].count >= 1 && offers[0].count <= OFI_CHOICES);
        for (uint32_t i = 0; i < offers[0].count; i++)
            must(offers[0].provider[i][0] && strlen(offers[0].provider[i]) < OFI_PROVIDER_NAME);
        offers[1] = offers[0];
        must(ofi_common(&offers[0], &offers[1]) == 0);
    }
    (void)ofi_side_valid(data, size);
    return 0;
}
