/* SPDX-License-Identifier: MIT
 *
 * A parser of the requests that clients send to a proxy before bytes are passed on: SOCKS5 (RFC 1928, 1929), HTTP CONNECT, and plain HTTP
 * with a whole URL. The caller passes in the received bytes, and gets the bytes of the reply.
 */
#ifndef WEFT_CLI_PROXY_TALK_H
#define WEFT_CLI_PROXY_TALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TALK_MAX       32768u             /* largest head of a request, in bytes */
#define TALK_REPLY_MAX (TALK_MAX + 1024u) /* bytes of `reply` */

enum talk_next {
    TALK_MORE,   /* more bytes are needed */
    TALK_REPLY,  /* send `reply`, then read the bytes after `taken` */
    TALK_REFUSE, /* send `reply`, then close the connection */
    /* the client wants to send datagrams, from its port `port` (0: not known yet). Reply by talk_opened(), with the address to which the
       client must send datagrams */
    TALK_ASSOCIATE,
    TALK_GO, /* connect to `host` and `port`, reply by talk_opened(), and pass on all bytes after `taken` */
};
/* The body of a request of plain HTTP. Its end must be found, because bytes after it may be a request to another server. */
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
    uint64_t left; /* bytes left of the body or of a chunk; in BODY_SIZE: the part of the chunk's size that was read */
    bool digits;   /* a digit of the chunk's size was read */
};
/* Returns how many of the bytes at `in` belong to the body. Each call continues where the last call has ended. */
size_t talk_body(struct talk_body *b, const uint8_t *in, size_t bytes);

enum talk_state { TALK_FIRST, TALK_SOCKS_PASSWORD, TALK_SOCKS_REQUEST, TALK_SOCKS, TALK_CONNECT, TALK_PLAIN };
struct talk {
    enum talk_state state;
    const char *user, *password; /* what clients must give; NULL: clients need not give anything */
    char host[256];
    uint32_t port;
    struct talk_body body; /* the body of a request of plain HTTP */
};
struct talk_reply {
    size_t bytes;
    uint8_t at[TALK_REPLY_MAX];
};
/* Reads the bytes that have been received so far. `*taken`: how many bytes were used and can be dropped. After TALK_GO for plain HTTP, send
 * `reply` to the server in place of these bytes. */
enum talk_next talk_read(struct talk *t, const uint8_t *in, size_t bytes, size_t *taken, struct talk_reply *reply);
/* Write the reply after connecting. talk_opened(): there is a connection; its own address is `local`, as in "10.0.0.1:80". talk_failed():
 * `rc` is a negative errno, `why` a sentence. */
void talk_opened(const struct talk *t, const char *local, struct talk_reply *reply);
void talk_failed(const struct talk *t, int rc, const char *why, struct talk_reply *reply);

/* Datagrams of SOCKS5. talk_datagram() reads the head of a client's datagram. It returns the length of the head (0: drop the datagram), and
 * stores the host and port to which the datagram goes. talk_datagram_head() writes, before `end`, the head of a datagram that was received
 * from an address such as "10.0.0.1:53". It returns the length of the head. */
#define TALK_DATAGRAM_HEAD 22u
size_t talk_datagram(const uint8_t *in, size_t bytes, char host[256], uint32_t *port);
size_t talk_datagram_head(uint8_t *end, const char *from);

#endif
