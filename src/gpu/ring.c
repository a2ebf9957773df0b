/* SPDX-License-Identifier: MIT
 *
 * Making and freeing a ring of requests.
 */
#include "gpu/ring.h"

#include <stdlib.h>
#include <sys/mman.h>

int gpu_ring_open(struct gpu_ring *r, uint32_t slots, uint32_t nodes)
{
    size_t page = BASE_PAGE; /* whole pages, because a GPU may be able to map only those */
    size_t slot_bytes = slots * sizeof(weft_device_slot), answer_bytes = slots * sizeof(weft_device_cell);
    r->bytes = base_round_up(slot_bytes + answer_bytes + page, page);
    r->memory = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->nodes = nodes;
    r->errors = calloc((size_t)nodes + 1, sizeof *r->errors);
    r->requests = calloc(slots, sizeof *r->requests);
    r->spare = calloc(slots, sizeof(struct gpu_request *));
    r->under_way = calloc(slots, sizeof(struct gpu_request *));
    if (r->memory == MAP_FAILED || !r->errors || !r->requests || !r->spare || !r->under_way) {
        if (r->memory == MAP_FAILED)
            r->memory = NULL;
        gpu_ring_close(r);
        return base_fail(-ENOMEM, "no memory for a ring of %u requests: ask for fewer (weft_gpu_config.slots)", slots);
    }
    r->slots = r->memory;
    r->answers = (weft_device_cell *)(r->slots + slots);
    r->taken = (_Atomic uint64_t *)((uint8_t *)r->answers + answer_bytes);
    r->mask = slots - 1;
    /* A zeroed place looks like the answer to request 2^32 - 1, which has the last place. A number that belongs to another place does not.
     */
    r->answers[r->mask].high = 1ull << 32;
    while (r->spares < slots) {
        r->spare[r->spares] = &r->requests[r->spares];
        r->spares++;
    }
    return 0;
}

void gpu_ring_close(struct gpu_ring *r)
{
    for (uint64_t i = r->done; i != r->head; i += r->under_way[i & r->mask]->slots) /* records that no service has answered yet */
        if (r->under_way[i & r->mask]->kind == WEFT_DEVICE_RECORD)
            free(r->under_way[i & r->mask]->record);
    if (r->memory)
        munmap(r->memory, r->bytes);
    free(r->errors);
    free(r->requests);
    free(r->spare);
    free(r->under_way);
    *r = (struct gpu_ring){0};
}
