/* SPDX-License-Identifier: MIT
 *
 * What a program says to a proxy before its bytes are passed on: SOCKS5 (RFC 1928, 1929), HTTP CONNECT, and plain HTTP with the whole
 * address in the request. No input or output here: bytes in, bytes out.
 */
#ifndef WEFT_CLI_PROXY_TALK_H
#define WEFT_CLI_PROXY_TALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TALK_MAX       32768u             /* bytes of a request's head */
#define TALK_REPLY_MAX (TALK_MAX + 1024u) /* bytes of `reply` */

enum talk_next {
    TALK_MORE,      /* more bytes are needed */
    TALK_REPLY,     /* send `reply`, then go on with the bytes after `taken` */
    TALK_REFUSE,    /* send `reply`, then close the connection */
    TALK_ASSOCIATE, /* UDP: the client's datagrams come from `port`, if it is not 0; send talk_opened() with the address for them */
    TALK_GO,        /* connect to `host` and `port`; send talk_opened(), and pass on all bytes after `taken` */
};
/* The body of a plain request. What a client sends behind it is another request, perhaps for another host: this server must not get it. */
enum body_state {
    BODY_OVER,
    BODY_BYTES,
    BODY_SIZE,
    BODY_EXTENSION,
    BODY_SIZE_LF,
    BODY_CHUNK,
    BODY_CHUNK_CR,
    BODY_CHUNK_LF,
    BODY_TRAILER,
    BODY_TRAILER_LINE,
    BODY_TRAILER_LF,
    BODY_LAST_LF
};
struct talk_body {
    enum body_state state;
    uint64_t left; /* bytes of the body, or of a chunk; while its size is read: what was read */
    bool digits;   /* the chunk's size has begun */
};
/* How many of the bytes, which follow those of the last call, belong to the body. */
size_t talk_body(struct talk_body *b, const uint8_t *in, size_t bytes);

enum talk_state { TALK_FIRST, TALK_SOCKS_PASSWORD, TALK_SOCKS_REQUEST, TALK_SOCKS, TALK_CONNECT, TALK_PLAIN };
struct talk {
    enum talk_state state;
    const char *user, *password; /* what is asked for; NULL: nothing */
    char host[256];
    uint32_t port;
    struct talk_body body; /* of plain HTTP */
};
struct talk_reply {
    size_t bytes;
    uint8_t at[TALK_REPLY_MAX];
};
/* Reads the first `bytes` bytes. `*taken` says how many of them need not be passed again. With TALK_GO of plain HTTP, `reply` is the head
 * of the request as the server is to get it, instead of the bytes that were taken. */
enum talk_next talk_read(struct talk *t, const uint8_t *in, size_t bytes, size_t *taken, struct talk_reply *reply);
/* The answer when there is a connection (`local`: its own address, as in "10.0.0.1:80"), or none (`rc`: a negative errno, `why`: a
 * sentence). */
void talk_opened(const struct talk *t, const char *local, struct talk_reply *reply);
void talk_failed(const struct talk *t, int rc, const char *why, struct talk_reply *reply);

/* Datagrams of SOCKS5. talk_datagram(): the length of the head of a client's datagram, and where it is to go; 0: it is to be dropped.
 * talk_datagram_head(): writes the head of one from an address such as "10.0.0.1:53" before `end`; returns its length. */
#define TALK_DATAGRAM_HEAD 22u
size_t talk_datagram(const uint8_t *in, size_t bytes, char host[256], uint32_t *port);
size_t talk_datagram_head(uint8_t *end, const char *from);

#endif
