/* SPDX-License-Identifier: MIT
 *
 * Any bytes as the request of a client of `weft proxy`. The first byte chooses whether a password is needed, and in which pieces the rest
 * arrives. The proxy waits for more, refuses the request, or connects to a host with a name and a port. It never crashes, and never reads
 * more bytes than there are.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/proxy_talk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void finish(const struct talk *t, struct talk_reply *reply)
{
    if (!t->host[0] || strlen(t->host) >= sizeof t->host || !t->port || t->port > 65535)
        abort();
    if (t->state == TALK_PLAIN && (reply->bytes < 4 || memcmp(reply->at + reply->bytes - 4, "\r\n\r\n", 4) != 0))
        abort();
    talk_opened(t, "[fd00::1]:80", reply);
    talk_failed(t, -13, "no", reply);
    if (!reply->bytes || reply->bytes > sizeof reply->at)
        abort();
}

/* The body ends at the same byte, in whatever pieces it comes. */
static void pass_body(const struct talk *t, const uint8_t *in, size_t bytes)
{
    struct talk_body whole = t->body, pieces = t->body;
    size_t all = talk_body(&whole, in, bytes), one = 0;
    while (one < bytes && talk_body(&pieces, in + one, 1))
        one++;
    if (all > bytes || one != all || whole.state != pieces.state || whole.left != pieces.left)
        abort();
}

/* The same bytes as a datagram. The head must be inside the datagram. A head that is written with the same address must be read as the same
 * address. */
static void datagram(const uint8_t *data, size_t size, char host[256], uint32_t *port)
{
    uint8_t *own = malloc(size), back[TALK_DATAGRAM_HEAD], *end = back + sizeof back;
    char address[300], again[256];
    uint32_t port_again;
    if (!own)
        abort();
    memcpy(own, data, size);
    size_t n = talk_datagram(own, size, host, port);
    if (n > size || (n && (n < 8 || !host[0] || strlen(host) > 255 || !*port || *port > 65535)))
        abort();
    if (n && own[3] != 3) {
        snprintf(address, sizeof address, own[3] == 4 ? "[%s]:%u" : "%s:%u", host, *port);
        size_t head = talk_datagram_head(end, address);
        if (head > sizeof back || talk_datagram(end - head, head, again, &port_again) != head || strcmp(again, host) != 0 ||
            port_again != *port)
            abort();
    }
    free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct talk_reply reply;
    if (size == 0)
        return 0;
    char host[256];
    uint32_t port;
    datagram(data, size, host, &port);
    struct talk t = {.state = TALK_FIRST};
    if (data[0] & 1) {
        t.user = "user";
        t.password = "password";
    }
    size_t step = data[0] >> 1 ? data[0] >> 1 : size, at = 0;
    data++, size--;
    size = size < TALK_MAX ? size : TALK_MAX;
    for (size_t have = step < size ? step : size;;) {
        /* An exact copy, so that the address sanitizer detects reads beyond the end. */
        uint8_t *own = malloc(have - at + 1);
        if (!own)
            abort();
        memcpy(own, data + at, have - at);
        size_t taken;
        enum talk_next next = talk_read(&t, own, have - at, &taken, &reply);
        free(own);
        if (taken > have - at || reply.bytes > sizeof reply.at)
            abort();
        at += taken;
        if (next == TALK_GO) {
            if (t.state == TALK_PLAIN)
                pass_body(&t, data + at, size - at);
            finish(&t, &reply);
        }
        if (next == TALK_ASSOCIATE && t.port > 65535)
            abort();
        if (next == TALK_GO || next == TALK_ASSOCIATE || next == TALK_REFUSE || (next == TALK_MORE && have == size))
            return 0;
        if (next == TALK_REPLY && !taken)
            abort();
        if (next == TALK_MORE)
            have = have + step < size ? have + step : size;
    }
}
