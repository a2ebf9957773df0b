/* SPDX-License-Identifier: MIT
 *
 * Everything that another process can write into shared memory. The first byte chooses:
 *   even: the rest is written to the cells of a ring; reading messages must end, and return only allowed lengths;
 *   odd:  the rest is a sequence of messages to weft's own handlers (lock, queue), sent through the ring to a cluster of one node: they may
 * be refused or executed, and must not harm the process.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/fabric.h"
#include "fabric/shm/ring.h"
#include "queue/queue.h"
#include "sync/sync.h"
#include "weft.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void scribbled_ring(const uint8_t *data, size_t size)
{
    static struct ring *ring;
    static struct ring_message message;
    if (!ring)
        ring = aligned_alloc(BASE_CACHE_LINE, base_round_up(sizeof *ring, BASE_CACHE_LINE));
    if (!ring)
        abort();
    memset(ring, 0, sizeof *ring);
    struct ring_receiver r = {.ring = ring, .head = size > 1 ? data[1] * UINT64_C(0x0101010101) : 0};
    /* Writes from the receiver's position on, so that the receiver reads the first word. */
    size_t at = r.head % RING_CELLS * RING_CELL_BYTES;
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)ring->cells)[(at + i) % sizeof ring->cells] = data[i];
    int rc;
    unsigned taken = 0;
    while ((rc = ring_pop(&r, &message)) == 1) {
        if (message.header_len > WEFT_HEADER_MAX || message.payload_len > WEFT_PAYLOAD_MAX || ++taken > RING_CELLS)
            abort();
    }
    struct ring_sender s = {.ring = ring};
    atomic_store(&ring->head, size > 9 ? data[9] * UINT64_C(0x0123456789abcd) : 0);
    for (unsigned i = 0; i < 70 && rc != -EPROTO; i++)
        rc = ring_push(&s, 1, NULL, 0, message.body, WEFT_PAYLOAD_MAX);
}

static void odd_messages(const uint8_t *data, size_t size)
{
    static weft_node *w;
    static weft_queue *q;
    if (!w) {
        weft_config c = {.bytes = sizeof c, .pool_bytes = 16 << 20, .size = 1};
        weft_queue_config qc = {.bytes = sizeof qc, .slots = 64};
        if (weft_open(&w, &c) || weft_queue_open(w, "fuzz", &qc, &q))
            abort();
        base_log_set("error");
    }
    /* a message: id (1), header length (1), payload length (2), header, payload */
    while (size >= 4) {
        uint32_t id = data[0] % 3 ? QUEUE_HANDLER : SYNC_HANDLER_LOCK;
        size_t header = data[1] % (WEFT_HEADER_MAX + 1), payload = ((size_t)data[2] << 8 | data[3]) % (WEFT_PAYLOAD_MAX + 1);
        data += 4, size -= 4;
        if (header > size)
            header = size;
        if (payload > size - header)
            payload = size - header;
        uint8_t bytes[WEFT_HEADER_MAX];
        memcpy(bytes, data, header);
        /* Sometimes uses a name that exists; otherwise the lock would never be found. */
        if (header >= 8 && data[0] % 2)
            memcpy(bytes, &(uint64_t){weft_gaddr_make(0, 0, 65536 + (uint64_t)(data[0] / 2) * 8)}, 8);
        if (fab_send(w, 0, id, bytes, header, data + header, payload, NULL))
            abort();
        data += header + payload, size -= header + payload;
    }
    if (weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT))
        abort();
    while (weft_progress(w))
        ;
    /* The node still works. */
    weft_lease claim;
    (void)weft_claim(q, &claim, 1, 0);
    if (!weft_alive(w, 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 1)
        odd_messages(data + 1, size - 1);
    else
        scribbled_ring(data, size);
    return 0;
}
