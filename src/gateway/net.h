/* SPDX-License-Identifier: MIT
 *
 * The net service: sockets of the gateway, the node that offers the service, for askers that may have no network. Its files, lowest first:
 *
 *   net_rules.c    addresses, and whom the askers may reach
 *   net_names.c    resolves names on threads of its own
 *   net_udp.c      datagrams of one socket
 *   net_socket.c   moves bytes between one socket and its asker's memory
 *   net_open.c     makes sockets: resolves, checks, connects, listens, accepts
 *   net.c          the service: its requests
 *   net_handle.c   the asker's handles; net_datagrams.c, net_bytes.c: what the asker sends and receives
 *
 * All at the gateway but the resolving threads runs on the server thread. A connection has two streams, `down` from the network to the
 * asker and `up` from the asker to the network. Both rings are the asker's memory. A gateway that has mapped the asker's pool reads the
 * socket into the ring and writes it from the ring. Another one sends what it has read in messages, and fetches what is to be written into
 * one of NET_PIECES buffers that all connections share. So a connection has no buffer at the gateway.
 */
#ifndef WEFT_GATEWAY_NET_H
#define WEFT_GATEWAY_NET_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "gateway/gateway.h"
#include "weft/net.h"

struct addrinfo;

/* --- net_rules.c --- */
#define NET_HOST_MAX 255u /* bytes of a host's name */
struct net_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
    socklen_t len;
};
/* Copies an address of IPv4 or IPv6; one of IPv6 that stands for one of IPv4 (::ffff:10.0.0.1) becomes the latter. False: another family.
 */
bool net_address_take(struct net_address *out, const struct sockaddr *from, socklen_t len);
/* As in "10.0.0.1:80", "[::1]:80". */
#define NET_ADDRESS_TEXT 80u
void net_address_text(const struct net_address *a, char *out, size_t len);
struct net_rules;
/* Reads rules such as "allow=127.0.0.1:8000,deny=10.0.0.0/8". -EINVAL (sets the error text), -ENOMEM. */
int net_rules_read(const char *text, struct net_rules **out);
void net_rules_free(struct net_rules *all);
bool net_rules_deny_names(const struct net_rules *all); /* whether a rule denies a name */
/* What an asker wants to reach. */
struct net_target {
    const char *host; /* the name that it asked for */
    const char
        *canonical; /* the name for which that stands (an alias, a name of a search list), which is denied as well; NULL: not known */
    const struct net_address *to; /* an address of the host */
    bool near;                    /* it may reach this node's loopback (WEFT_NET_LOOPBACK), so only the rules of the node's owner count */
};
/* Whether it may. If not, `why` tells the rule. */
bool net_rules_allow(const struct net_rules *all, const struct net_target *t, char *why, size_t len);

/* --- net_names.c --- */
#define NET_LOOKUPS_MAX 1024u /* names that are resolved at a time, or wait for that */
struct net_lookup {
    struct gateway_work work; /* the first member */
    char host[NET_HOST_MAX + 1], port[8];
    int family, type;       /* AF_UNSPEC, AF_INET, AF_INET6; SOCK_STREAM, SOCK_DGRAM */
    bool passive;           /* for a socket that listens */
    bool canonical;         /* ask for the name that the name stands for, too */
    int result;             /* 0 or a negative errno */
    struct addrinfo *found; /* freed with the lookup */
    void *owner;
    void (*resolved)(struct net_lookup *l); /* on the thread that waits for the watches; takes ownership */
};
int net_names_open(struct gateway_works **out, struct gateway_watches *watches, uint32_t askers);
/* Resolves a name without blocking: takes ownership of `l`. -EDQUOT: too many names are being resolved. */
int net_names_ask(struct gateway_works *all, struct net_lookup *l);
int net_names_numeric(struct net_lookup *l); /* resolves an address at once; else a negative errno */
void net_lookup_free(struct net_lookup *l);

/* --- net_udp.c --- */
/* A datagram in a stream: this, then its bytes. What is sent lies together in the ring. So up to the ring's end there may be bytes to skip:
 * fewer than a struct, or one whose `bytes` is NET_DATAGRAM_SKIP and what is behind it. */
struct net_datagram {
    uint32_t bytes;
    uint8_t family; /* 4, 6; 0: to the peer */
    uint8_t zero;
    uint16_t port;
    uint8_t address[16]; /* of the peer */
};
_Static_assert(sizeof(struct net_datagram) == 24, "the head of a datagram");
#define NET_DATAGRAM_SKIP UINT32_MAX
#define NET_DATAGRAM_ROOM (sizeof(struct net_datagram) + 65535u) /* for any that comes */
#define NET_DATAGRAM_RING (UINT64_C(128) << 10)                  /* the least and the usual ring of datagrams: has room for two */
_Static_assert(sizeof(struct net_datagram) + WEFT_NET_DATAGRAM_MAX <= 65536u, "a datagram fits into a NET_PIECE");
/* Reads a head. `have` bytes are at `at`, and the ring ends after `gap` bytes. Returns the bytes of the record, or those to skip; 0: it is
 * not complete; -EPROTO: it is invalid. */
int64_t net_datagram_read(struct net_datagram *out, const uint8_t *at, uint64_t have, uint64_t gap);
struct net_socket;
/* Sends one, or drops it with a line in the log. Returns as net_datagram_read(), and -EAGAIN: not now. */
int64_t net_udp_send(struct net_socket *s, const uint8_t *at, uint64_t have, uint64_t gap, bool *skip);
bool net_udp_receive(struct net_socket *s);               /* receives one. False: there is none now, or no room */
uint64_t net_udp_room(const struct gateway_stream *down); /* 0: none for any datagram */

/* --- net_socket.c --- */
#define NET_SOCKETS_MAX 16384u
#define NET_PIECE       65536u
#define NET_PIECES      64u
struct net_piece { /* bytes on their way from an asker's pool that is not mapped */
    struct net_piece *next;
    uint32_t asker;
    weft_op op;
    bool getting;
    uint32_t have, used;
    uint8_t bytes[NET_PIECE];
};
enum net_state { NET_RESOLVES, NET_CONNECTS, NET_OPEN, NET_LISTENS };
struct net_socket {
    struct gateway_listener listener;
    struct net *all;
    uint64_t id;
    uint32_t node; /* the asker */
    enum net_state state;
    uint32_t flags; /* WEFT_NET_... */
    struct gateway_watch watch;
    struct gateway_stream *down, *up;
    struct gateway_call *call; /* to be answered when the socket is connected or listens; or, when all is sent, the CLOSE request */
    bool closing;              /* `call` is a CLOSE request */
    bool down_over, up_over;   /* nothing more is read from the network, or written to it */
    struct gateway_call *accepts, **accepts_last;
    struct net_lookup *lookup;
    struct addrinfo *next_address; /* of `lookup`: tried next */
    int tried;                     /* the last failure of an address; 0: none was tried */
    struct net_address address;    /* the one that is being tried */
    struct net_piece *piece;
    int64_t said; /* when a dropped datagram was logged last; 0: never */
    /* In the list of sockets that the tick looks at: */
    bool timed, wants_piece;
    int64_t deadline; /* INT64_MAX: none */
    struct net_socket *timed_next, **timed_at;
};
struct net_asker {
    uint32_t sockets, pieces; /* that it has now */
};
struct net {
    struct gateway_server *server;
    struct net_asker *asker; /* [room of the cluster] */
    struct gateway_table table;
    struct net_rules *rules;
    struct gateway_works *names;
    struct net_socket *timed;
    struct net_piece *spare, *orphans; /* orphans: their socket is gone, and the fabric may still write to them */
    uint32_t pieces, spares;           /* how many there are; of these, in the list `spare` */
};
int net_socket_new(struct net *all, uint32_t node, uint32_t flags, struct net_socket **out);
/* Makes the streams of a connection from the request that opens it. */
int net_socket_streams(struct net_socket *s, const weft_request *r);
int net_socket_watch(struct net_socket *s, int fd, unsigned events); /* closes `fd` on failure */
void net_socket_move(struct net_socket *s);                          /* moves bytes both ways, as far as possible. May free `s` */
void net_socket_time(struct net_socket *s, int64_t deadline);
void net_socket_untime(struct net_socket *s);
void net_socket_close(struct net_socket *s, struct gateway_call *c); /* answers `c` when all is sent; frees `s` then */
void net_socket_drop(struct net_socket *s, struct gateway_call *c);  /* the same at once: what is not sent is dropped */
/* Closes at once; what is not sent is dropped, and the peer sees a reset. Answers no requests. */
void net_socket_free(struct net_socket *s);
int64_t net_pieces_tick(struct net *all);
void net_pieces_free(struct net *all);

/* --- net_open.c --- */
void net_open_connect(struct net *all, struct gateway_call *c); /* CONNECT and LISTEN */
void net_open_accept(struct net_socket *listener, struct gateway_call *c);
void net_open_resolved(struct net_lookup *l);
void net_open_timeout(struct net_socket *s); /* its deadline is over */

/* --- what the asker sends --- */
enum net_kind {
    /* data: the host, without a zero byte. arg[0]: port; arg[1]: the asker's stream that gets what is received; arg[2], arg[3]: its ring,
     * and the ring's size; arg[4] to arg[6]: the same for what is sent; arg[7], arg[8]: the sizes of the socket's own buffers, 0: the
     * system's. flags: WEFT_NET_.... Answer: word 0: the socket's number; word 1: the gateway's stream that reads what is sent; payload:
     * its own address and that of its peer, each with a zero byte */
    NET_CONNECT = 1,
    NET_LISTEN, /* the same without streams. arg[9]: the backlog */
    NET_ACCEPT, /* handle: the listener; arg[1] to arg[6] and the answer: as in CONNECT. Answered when there is a connection */
    NET_CLOSE,  /* handle; arg[0]: 1: drop what is not sent. Answered when all was sent, and the gateway no longer uses the rings */
};

#endif
