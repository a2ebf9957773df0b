/* SPDX-License-Identifier: MIT
 *
 * Every call of weft/device.metal.h, as a program for Metal has them. Compiled with metal_stand_in/ for its types, and once more to run on
 * a processor (tests/multi/test_gpu_metal.c). Each kernel stores in `result` the line of the check that failed, or 0.
 */
#include <weft/device.metal.h>

#include "metal_kernels.h"

static_assert(sizeof(metal_op) == sizeof(weft_device_op) && sizeof(weft_device_cell) == 16 && sizeof(weft_device_slot) == 32,
              "as the node has them");
static_assert(sizeof(weft_device) == 72 && sizeof(weft_device_ring) == 64, "as the node has them");

#define MUST(is)                  \
    do {                          \
        if (!(is)) {              \
            a->result = __LINE__; \
            return;               \
        }                         \
    } while (0)

static inline void keep(device metal_argument *a, int i, weft_device_op op)
{
    a->op[i].ticket = op.ticket;
    a->op[i].ring = op.ring;
    a->op[i].status = op.status;
    a->op[i].value = op.value;
}
static inline weft_device_op kept(const device metal_argument *a, int i)
{
    weft_device_op op = {a->op[i].ticket, a->op[i].ring, a->op[i].status, a->op[i].value};
    return op;
}

/* One thread of a block. */
kernel void metal_start(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    weft_device_op op;
    uint64_t node = a->there >> 48, old;
    device uint64_t *mine = (device uint64_t *)weft_device_ptr(&d, a->mine, 8 * METAL_WORDS);
    MUST(mine && !weft_device_ptr(&d, a->mine, ~(uint64_t)0));
    for (uint i = 0; i < METAL_WORDS; i++)
        mine[i] = (uint64_t)block << 32 | i;
    MUST(weft_device_put(&d, a->there, a->mine, 8 * METAL_WORDS, &op) == 0);
    keep(a, 0, op);
    MUST(weft_device_test(&d, &op) == -WEFT_DEVICE_EINPROGRESS && weft_device_wait(&d, &op) == -WEFT_DEVICE_ETIMEDOUT);
    MUST(weft_device_fence(&d, (uint32_t)node) == 0);
    MUST(weft_device_put_value(&d, a->there + 8, 1000 + block, 0) == 0);
    MUST(weft_device_fetch_add_start(&d, a->counter, 1, &op) == 0);
    keep(a, 1, op);
    MUST(weft_device_compare_swap_start(&d, a->there + 16, (uint64_t)block << 32 | 2, 7, &op) == 0);
    keep(a, 2, op);
    MUST(weft_device_swap_start(&d, a->there + 24, 8, &op) == 0);
    keep(a, 3, op);
    MUST(weft_device_put_signal(&d, a->there + 32, a->mine, 8, a->there + 40, 5, &op) == 0);
    keep(a, 4, op);
    /* Calls that would have to wait return an error. */
    MUST(weft_device_flush(&d, (uint32_t)node) == -WEFT_DEVICE_ENOTSUP &&
         weft_device_fetch_add(&d, a->counter, 1, &old) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_swap(&d, a->counter, 1, &old) == -WEFT_DEVICE_ENOTSUP && weft_device_nothing(&d, true) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_compare_swap(&d, a->counter, 1, 2, &old) == -WEFT_DEVICE_ENOTSUP &&
         weft_device_ask(&d, 0, a->mine, &old) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_submit(&d, 0, a->mine, 1, 0) == -WEFT_DEVICE_ENOTSUP && weft_device_claim(&d, 0, a->mine, 1) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_complete(&d, 0, a->mine, a->mine, 1, &old) == -WEFT_DEVICE_ENOTSUP);
    MUST(weft_device_wait_at_least(&d, a->mine, (uint64_t)1 << 60, &old) == -WEFT_DEVICE_ETIMEDOUT);
    MUST(weft_device_wait_at_least(&d, a->mine + 8, 1, &old) == 0);
    MUST(weft_device_wait_until(&d, a->mine + 8, WEFT_NE, mine[1], &old, 1000) == -WEFT_DEVICE_ETIMEDOUT && old == mine[1]);
    MUST(weft_device_wait_until(&d, a->mine + 8, WEFT_LE, mine[1], &old, 0) == 0);
    a->result = 0;
}

/* The next kernel checks how the operations ended, and copies the words back. */
kernel void metal_look(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    for (int i = 0; i < 5; i++) {
        weft_device_op op = kept(a, i);
        MUST(weft_device_test(&d, &op) == 0);
        keep(a, i, op);
    }
    MUST(a->op[2].value == ((uint64_t)block << 32 | 2) && a->op[3].value == ((uint64_t)block << 32 | 3));
    weft_device_op op;
    MUST(weft_device_get(&d, a->mine, a->there, 8 * METAL_WORDS, &op) == 0);
    keep(a, 0, op);
    MUST(weft_device_send(&d, (uint32_t)(a->there >> 48), 40, block, a->mine, 0, &op) == 0);
    keep(a, 1, op);
    MUST(weft_device_submit_start(&d, 99, a->mine, 1, 0, true, &op) == 0);
    keep(a, 2, op);
    MUST(weft_device_claim_start(&d, 99, a->mine, 1, true, &op) == 0);
    keep(a, 3, op);
    MUST(weft_device_complete_start(&d, 99, a->mine, a->mine, 1, true, &op) == 0);
    keep(a, 4, op);
    MUST(weft_device_ask_start(&d, 62, a->mine, &op) == 0);
    keep(a, 5, op);
    a->result = 0;
}

kernel void metal_read(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    const device uint64_t *mine = (const device uint64_t *)weft_device_ptr(&d, a->mine, 8 * METAL_WORDS);
    for (int i = 0; i < 6; i++) {
        weft_device_op op = kept(a, i);
        int rc = weft_device_test(&d, &op);
        MUST(i < 1 ? rc == 0 : i < 2 ? rc == 0 || rc == -WEFT_DEVICE_EINVAL : rc == -WEFT_DEVICE_ENOENT || rc == -WEFT_DEVICE_EBADF);
    }
    for (uint i = 0; i < METAL_WORDS; i++) {
        uint64_t is = i == 1   ? 1000 + block
                      : i == 2 ? 7
                      : i == 3 ? 8
                      : i == 4 ? (uint64_t)block << 32
                      : i == 5 ? ((uint64_t)block << 32 | 5) + 5
                               : (uint64_t)block << 32 | i;
        MUST(mine[i] == is);
    }
    a->result = 0;
}

/* Starts more requests than there is room for: those that find no room fail at once. */
kernel void metal_flood(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    a->posted = 0;
    for (int i = 0; i < 1000; i++) {
        int rc = weft_device_put_value(&d, a->there + 8, (uint64_t)i, 0);
        MUST(rc == 0 || rc == -WEFT_DEVICE_EAGAIN);
        a->posted += rc == 0;
    }
    weft_device_op op;
    MUST(weft_device_get(&d, a->mine, a->there, 8, &op) == -WEFT_DEVICE_EAGAIN);
    MUST(weft_device_put_nowait(&d, a->there, a->mine, 8, &op) == -WEFT_DEVICE_EAGAIN);
    a->result = 0;
}

/* A request that fails and has no op, and a request whose op nobody reads. */
kernel void metal_wrong(const device weft_device *given, device metal_argument *all, uint block)
{
    device metal_argument *a = all + block;
    weft_device d = weft_device_of(given, block);
    weft_device_op op;
    MUST(weft_device_nothing(&d, false) == 0 && weft_device_put(&d, a->mine, a->mine, 8, &op) == 0);
    weft_device_leave(&d, &op);
    MUST(weft_device_put(&d, (uint64_t)0xffff << 48, a->mine, 8, 0) == 0);
    a->result = 0;
}

/* --- services. Each kernel takes one step: makes a call that an earlier kernel may have begun, until it returns the result. --- */

#define STEP(call, is)                           \
    do {                                         \
        if (a->step == at++) {                   \
            int rc = (call);                     \
            if (rc == -WEFT_DEVICE_EINPROGRESS)  \
                return;                          \
            MUST(is);                            \
            a->step = at;                        \
            return;                              \
        }                                        \
    } while (0)

/* The same, again and again until `whole` bytes are done; the call stores in `n` how many it has done. */
#define PARTS(call, whole)                         \
    do {                                           \
        if (a->step == at++) {                     \
            int rc = (call);                       \
            if (rc == -WEFT_DEVICE_EINPROGRESS)    \
                return;                            \
            MUST(rc == 0 && n > 0);                \
            a->done += n;                          \
            if (a->done < (whole))                 \
                return;                            \
            a->done = 0;                           \
            a->step = at;                          \
            return;                                \
        }                                          \
    } while (0)

kernel void metal_program(const device weft_device *given, device metal_service *all, uint block)
{
    device metal_service *a = all + block;
    weft_device d = weft_device_of(given, block);
    uint64_t n = 0, p = a->handle[0], addr = 0, bytes = 0;
    weft_device_exit end = {0, 0, 0, 0, 0};
    char name[3] = {'n', (char)('0' + block), 0}, nobody[2] = {'x', 0};
    int at = 0;
    STEP(weft_device_spawn(&d, a->record + 1, a->server, WEFT_SPAWN_STDOUT, a->texts, a->text_bytes, 1, 0, &p), rc == -WEFT_DEVICE_EFAULT);
    STEP(weft_device_spawn(&d, a->record, a->server, WEFT_SPAWN_STDIN | WEFT_SPAWN_STDOUT, a->texts, a->text_bytes, 1, 0, &p),
         rc == 0 && (a->handle[0] = p));
    PARTS(weft_device_process_write(&d, a->record, p, a->in + a->done, METAL_BYTES - a->done, &n), METAL_BYTES);
    PARTS(weft_device_process_read(&d, a->record, p, 1, a->out + a->done, METAL_BYTES - a->done < 1000 ? METAL_BYTES - a->done : 1000, &n),
          METAL_BYTES);
    STEP(weft_device_process_write(&d, a->record, p, 0, 0, &n), rc == 0);
    STEP(weft_device_process_read(&d, a->record, p, 1, a->out, 1, &n), rc == 0 && n == 0);
    STEP(weft_device_process_wait(&d, a->record, p, &end), rc == 0 && end.status == 0 && end.signal == 0);
    STEP(weft_device_process_close(&d, a->record, p), rc == 0);
    STEP(weft_device_process_close(&d, a->record, p), rc < 0);
    STEP(weft_device_spawn(&d, a->record, a->server, WEFT_SPAWN_STDIN, a->texts, a->text_bytes, 1, 0, &p), rc == 0 && (a->handle[0] = p));
    STEP(weft_device_process_signal(&d, a->record, p, 15), rc == 0);
    STEP(weft_device_process_wait(&d, a->record, p, &end), rc == 0 && end.signal == 15);
    STEP(weft_device_process_close(&d, a->record, p), rc == 0);
    STEP(weft_device_name_publish(&d, a->record, a->server, name, a->word, 8), rc == 0);
    STEP(weft_device_name_lookup(&d, a->record, a->server, name, true, &addr, &bytes), rc == 0 && addr == a->word && bytes == 8);
    STEP(weft_device_name_lookup(&d, a->record, a->server, nobody, false, &addr, &bytes), rc == -WEFT_DEVICE_ENOENT);
    STEP(weft_device_name_withdraw(&d, a->record, a->server, name), rc == 0);
    a->step = METAL_ENDED;
}

static inline weft_device_file file_of(const device metal_service *a)
{
    weft_device_file f = {a->file[0], a->file[1], a->file[2], a->file[3], (int64_t)a->file[4], a->file[5]};
    return f;
}
static inline bool file_keep(device metal_service *a, weft_device_file f)
{
    a->file[0] = f.handle;
    a->file[1] = f.bytes;
    a->file[2] = f.disk;
    a->file[3] = f.inode;
    a->file[4] = (uint64_t)f.modified_ns;
    a->file[5] = f.generation;
    return true;
}

kernel void metal_file(const device weft_device *given, device metal_service *all, uint block)
{
    device metal_service *a = all + block;
    weft_device d = weft_device_of(given, block);
    weft_device_file f = file_of(a);
    uint64_t n = 0;
    int at = 0;
    STEP(weft_device_file_open(&d, a->record, a->server, a->path, a->path_bytes, 0, &f), rc == -WEFT_DEVICE_ENOENT);
    STEP(weft_device_file_open(&d, a->record, a->server, a->path, a->path_bytes, WEFT_FILE_WRITE | WEFT_FILE_CREATE, &f),
         rc == 0 && f.bytes == 0 && file_keep(a, f));
    STEP(weft_device_file_write(&d, a->record, &f, a->in, METAL_BYTES, 0, &n), rc == 0 && n == METAL_BYTES && file_keep(a, f));
    STEP(weft_device_file_sync(&d, a->record, &f), rc == 0);
    STEP(weft_device_file_stat(&d, a->record, &f), rc == 0 && f.bytes == METAL_BYTES && file_keep(a, f));
    PARTS(weft_device_file_read(&d, a->record, &f, a->out + a->done, METAL_BYTES - a->done < 2500 ? METAL_BYTES - a->done : 2500, a->done, &n),
          METAL_BYTES);
    STEP(weft_device_file_read(&d, a->record, &f, a->out, 1, METAL_BYTES, &n), rc == 0 && n == 0);
    STEP(weft_device_file_close(&d, a->record, &f), rc == 0);
    STEP(weft_device_file_close(&d, a->record, &f), rc == -WEFT_DEVICE_EBADF);
    a->step = METAL_ENDED;
}

kernel void metal_net(const device weft_device *given, device metal_service *all, uint block)
{
    device metal_service *a = all + block;
    weft_device d = weft_device_of(given, block);
    uint64_t n = 0, s = 0, where = 0, listener = a->handle[0], to = a->handle[1], from = a->handle[2];
    weft_device_net_address own = {}, peer = {};
    int at = 0;
    STEP(weft_device_net_listen(&d, a->record, a->server, a->host, a->host_bytes, 0, 0, &s), rc == 0 && (a->handle[0] = s));
    STEP(weft_device_net_opened(&d, a->record, listener, &own, &peer), rc == 0 && own.family == 4 && (a->port = own.port));
    STEP(weft_device_net_connect(&d, a->record, a->server, a->host, a->host_bytes, a->port, WEFT_NET_NODELAY, &s), rc == 0 && (a->handle[1] = s));
    STEP(weft_device_net_accept(&d, a->record, listener, &s), rc == 0 && (a->handle[2] = s));
    PARTS(weft_device_net_send(&d, a->record, to, a->in + a->done, METAL_BYTES - a->done, &n), METAL_BYTES);
    PARTS(weft_device_net_receive(&d, a->record, from, a->out + a->done, METAL_BYTES - a->done < 1000 ? METAL_BYTES - a->done : 1000, &n),
          METAL_BYTES);
    STEP(weft_device_net_send(&d, a->record, to, a->in, 3, &n), rc == 0 && n == 3);
    STEP(weft_device_net_received(&d, a->record, from, &where, &n), rc == 0 && where && n > 0 && n <= 3);
    STEP(weft_device_net_taken(&d, a->record, from, 1), rc == 0);
    STEP(weft_device_net_shutdown(&d, a->record, from), rc == 0);
    STEP(weft_device_net_receive(&d, a->record, to, a->out + METAL_BYTES, 1, &n), rc == 0 && n == 0);
    STEP(weft_device_net_abort(&d, a->record, to), rc == 0);
    STEP(weft_device_net_close(&d, a->record, from), rc == 0);
    STEP(weft_device_net_close(&d, a->record, listener), rc == 0);
    /* Closing does not wait. So for a moment the listener may still get connections: close them, and try again until one is refused. */
    if (a->step == at++) {
        int rc = weft_device_net_connect(&d, a->record, a->server, a->host, a->host_bytes, a->port, 0, &s);
        if (rc == -WEFT_DEVICE_EINPROGRESS)
            return;
        MUST(rc == -WEFT_DEVICE_ECONNREFUSED || (rc == 0 && (a->handle[1] = s)));
        a->step = rc ? at + 1 : at;
        return;
    }
    if (a->step == at++) {
        int rc = weft_device_net_abort(&d, a->record, to);
        if (rc == -WEFT_DEVICE_EINPROGRESS)
            return;
        MUST(rc == 0);
        a->step = at - 2; /* connect again */
        return;
    }
    STEP(weft_device_net_listen(&d, a->record, a->server, a->host, a->host_bytes, 0, WEFT_NET_DATAGRAMS, &s), rc == 0 && (a->handle[0] = s));
    STEP(weft_device_net_opened(&d, a->record, listener, &own, 0), rc == 0 && (a->port = own.port));
    own.port = (uint16_t)a->port;
    own.family = 4;
    own.bytes[0] = 127;
    own.bytes[3] = 1;
    STEP(weft_device_net_send_to(&d, a->record, listener, &own, a->in, 100), rc == 0);
    STEP(weft_device_net_receive_from(&d, a->record, listener, &peer, a->out, METAL_BYTES, &n), rc == 0 && n == 100 && peer.port == a->port);
    STEP(weft_device_net_close(&d, a->record, listener), rc == 0);
    a->step = METAL_ENDED;
}
