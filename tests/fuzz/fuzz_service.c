/* SPDX-License-Identifier: MIT
 *
 * Messages of other nodes about services. The first byte chooses:
 *   even: the rest is first read as a record that starts a program, and its data: it is refused, or it is accepted and all strings are
 *         within the data. Then the same bytes are read as the head of a datagram.
 *   odd:  the rest is a sequence of messages to a server of names, sockets and files: header length (1), payload length (2), header,
 *         payload. They may be refused or executed, and must not harm the process.
 */
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gateway/net.h"
#include "weft.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_inside(const char *text, const uint8_t *data, size_t size)
{
    const uint8_t *at = (const uint8_t *)text;
    if (at < data || at >= data + size || strlen(text) >= (size_t)(data + size - at))
        abort();
}

static void block(const uint8_t *data, size_t size)
{
    weft_request r;
    struct gateway_block b;
    memset(&r, 0, sizeof r);
    memcpy(&r, data, size < sizeof r ? size : sizeof r);
    data += size < sizeof r ? size : sizeof r;
    size -= size < sizeof r ? size : sizeof r;
    /* An exact copy, so that the address sanitizer detects reads beyond the end. */
    uint8_t *own = malloc(size + 1);
    if (!own)
        abort();
    memcpy(own, data, size);
    r.data_bytes = size;
    if (gateway_block_read(&b, &r, size ? own : NULL) == 0) {
        uint32_t not_of_terminals = WEFT_SPAWN_STDERR | WEFT_SPAWN_STDERR_TO_STDOUT | WEFT_SPAWN_STDIN_DATA;
        if (r.flags & ~WEFT_SPAWN_FLAGS || (r.flags & WEFT_SPAWN_TERMINAL ? r.flags & not_of_terminals || r.arg[12] >> 32 : r.arg[12]))
            abort();
        check_inside(b.program, own, size);
        check_inside(b.directory, own, size);
        for (uint32_t i = 0; i < b.argc; i++)
            check_inside(b.argv[i], own, size);
        char *base[] = {(char[]){"HOME=/"}, (char[]){"A=1"}, (char[]){"odd"}, NULL};
        char **env = gateway_environment(base, b.env);
        size_t n = 0;
        while (env && env[n])
            n++;
        if (!b.argv[0] || !env || n > b.envc + 3)
            abort();
        free(env);
        gateway_block_clear(&b);
    }
    free(own);
}

/* Any bytes as datagrams of an asker: each is refused, or lies within the received bytes and before the end of the ring. */
static void datagram(const uint8_t *data, size_t size)
{
    struct net_datagram d;
    uint8_t *own = malloc(size + 1);
    if (!own)
        abort();
    memcpy(own, data, size);
    for (uint64_t gap = size; gap < size + 64; gap += 21) {
        int64_t n = net_datagram_read(&d, own, size, gap);
        bool skip = d.bytes == NET_DATAGRAM_SKIP;
        if (n > (int64_t)gap ||
            (n > 0 && !skip && ((uint64_t)n > size || d.bytes > WEFT_NET_DATAGRAM_MAX || (uint64_t)n != sizeof d + d.bytes)))
            abort();
    }
    free(own);
}

static weft_node *w;
static char folder[] = "/tmp/weft-fuzz-service-XXXXXX";

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void folder_remove(void)
{
    weft_close(w); /* first: a request that the node still serves may write a file there */
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A folder of its own, for the records of `file`, with one file. */
static void folder_make(void)
{
    char path[sizeof folder + 8];
    if (!mkdtemp(folder) || atexit(folder_remove))
        abort();
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *f = fopen(path, "w");
    if (!f || fputs("some bytes", f) < 0 || fclose(f))
        abort();
    setenv("WEFT_FILE_ROOT", folder, 1);
}

static void messages(const uint8_t *data, size_t size)
{
    if (!w) {
        weft_config c = {.bytes = sizeof c, .pool_bytes = 16 << 20, .size = 1};
        folder_make();
        setenv("WEFT_SERVE", "name,net,file", 1);
        setenv("WEFT_NET_RULES", "deny=*", 1); /* the records of `net` reach nobody */
        if (weft_open(&w, &c))
            abort();
        base_log_set("error");
    }
    while (size >= 3) {
        size_t header = data[0] % 4 ? sizeof(struct gateway_message) : data[0] % (WEFT_HEADER_MAX + 1);
        size_t payload = ((size_t)data[1] << 8 | data[2]) % (WEFT_PAYLOAD_MAX + 1);
        data += 3, size -= 3;
        header = header < size ? header : size;
        payload = payload < size - header ? payload : size - header;
        if (fab_send(w, 0, GATEWAY_HANDLER, data, header, data + header, payload, NULL))
            abort();
        data += header + payload, size -= header + payload;
    }
    if (weft_flush(w, 0, WEFT_TIMEOUT_DEFAULT))
        abort();
    while (weft_progress(w))
        ;
    /* The server still works. */
    weft_name n;
    int rc = weft_name_lookup(w, 0, "no such name", &n, WEFT_TIMEOUT_DEFAULT);
    if (rc != -ENOENT && rc != -EAGAIN && rc)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 1) {
        messages(data + 1, size - 1);
        return 0;
    }
    block(data + 1, size - 1);
    datagram(data + 1, size - 1);
    return 0;
}
