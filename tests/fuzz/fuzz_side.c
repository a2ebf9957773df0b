/* SPDX-License-Identifier: MIT
 *
 * Bytes that a peer sends over the side connection, in pieces whose sizes the first byte gives. Messages that are passed to the transport
 * must be complete and of an allowed length. Invalid bytes may end the connection to the peer, but must not end the process.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric/fabric.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t in_messages;

static void on_message(struct weft_node *w, struct fab_link *l, const void *bytes, size_t len)
{
    (void)w, (void)l;
    if (len > FAB_SIDE_MESSAGE_MAX)
        abort();
    uint8_t copy[FAB_SIDE_MESSAGE_MAX];
    memcpy(copy, bytes, len); /* the whole message must be readable */
    in_messages += 3 + len;
}

static const char *broken(struct weft_node *w, struct fab_link *l)
{
    (void)w, (void)l;
    return NULL;
}

static void nothing(struct weft_node *w, struct fab_link *l)
{
    (void)w, (void)l;
}

static void read_side(struct weft_node *w)
{
    bool died;
    const char *why = fab_side_read(w, &w->links[0], 64, &died);
    if (why)
        fab_peer_gone(w, 0, died, why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct fab_transport transport = {
        .name = "fuzz", .broken = broken, .last_words = nothing, .disconnect = nothing, .side = on_message};
    static struct fab_bell bell;
    static struct weft_node w;
    int fds[2];
    if (size < 2 || size > 16384)
        return 0;
    struct fab_link link = {.state = FAB_ALIVE, .node = 0, .transport = &transport, .pid_fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
        abort();
    base_log_set("error");
    link.side_fd = fds[0];
    w.size = w.founders = 1;
    w.links = &link;
    w.bell = &bell;
    in_messages = 0;
    size_t piece = (size_t)data[0] + 1, n = size - 1;
    for (size_t at = 1; at < size && fab_alive(&w, 0); at += piece) {
        size_t len = size - at < piece ? size - at : piece;
        if (write(fds[1], data + at, len) != (ssize_t)len)
            break;
        read_side(&w);
    }
    if (in_messages > n)
        abort();
    close(fds[1]);
    if (fab_alive(&w, 0))
        read_side(&w);
    if (fab_alive(&w, 0)) /* the end of the connection is noticed in any case */
        abort();
    close(fds[0]);
    free(link.side);
    free(link.gone_why);
    w.links = NULL;
    return 0;
}
