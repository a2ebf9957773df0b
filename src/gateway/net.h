/* SPDX-License-Identifier: MIT
 *
 * The net service (weft/net.h): the gateway, the node that offers the service, has sockets that other nodes, the askers, use. Each file
 * calls only those listed before it:
 *
 *   net_rules.c    addresses as text, and the rules that say which addresses askers may reach
 *   net_names.c    resolves names, on the threads of work.c
 *   net_udp.c      sends and receives the datagrams of one socket
 *   net_socket.c   moves bytes between one socket and its asker's memory
 *   net_lend.c     lends a socket to an asker of this host, which then moves the bytes itself
 *   net_open.c     opens sockets: resolves names, checks rules, connects, listens, accepts
 *   net.c          handles the requests of askers
 *   net_handle.c   asker: opens and closes handles
 *   net_datagrams.c, net_bytes.c, net_record.c   asker: sends and receives
 *   net_borrow.c   asker: borrows the socket itself
 *
 * At the gateway, everything except the resolving of names runs on the server thread. A connection has two streams (stream.c): `down` from
 * the network to the asker, and `up` from the asker to the network. The rings of both are in the asker's pool. If the gateway has mapped
 * the asker's pool, it reads from the socket into the ring of `down`, and writes to the socket from the ring of `up`. Otherwise it sends
 * the bytes that it has read in messages, and fetches the bytes to write into one of NET_PIECES buffers, which all connections share. So no
 * connection has a buffer of its own at the gateway.
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
/* Copies an IPv4 or IPv6 address. An IPv6 address that stands for an IPv4 address (::ffff:10.0.0.1) becomes this IPv4 address. Returns
 * false if the address is of another family. */
bool net_address_take(struct net_address *out, const struct sockaddr *from, socklen_t len);
/* Writes an address as text, as in "10.0.0.1:80", "[::1]:80". */
#define NET_ADDRESS_TEXT 80u
void net_address_text(const struct net_address *a, char *out, size_t len);
struct net_rules;
/* Reads rules such as "allow=127.0.0.1:8000,deny=10.0.0.0/8". Returns 0, -EINVAL (with an error text) or -ENOMEM. */
int net_rules_read(const char *text, struct net_rules **out);
void net_rules_free(struct net_rules *all);
bool net_rules_deny_names(const struct net_rules *all); /* whether a rule denies a name */
/* An address that an asker wants to reach, and the names by which the address was found. */
struct net_target {
    const char *host; /* the name that the asker has given */
    /* The name of which `host` is an alias, or to which a search list has extended `host`. Deny rules apply to this name, too. NULL: not
     * known. */
    const char *canonical;
    const struct net_address *to; /* an address of the host */
    bool near; /* the asking node may connect to this node's loopback addresses (WEFT_NET_LOOPBACK): the default rules do not apply */
};
/* Returns whether an asker may reach the target. If not, `why` names the rule that forbids it. */
bool net_rules_allow(const struct net_rules *all, const struct net_target *t, char *why, size_t len);

/* --- net_names.c --- */
#define NET_LOOKUPS_MAX 1024u /* how many names may be resolved, or wait to be resolved, at the same time */
struct net_lookup {
    struct gateway_work work; /* must be the first member */
    char host[NET_HOST_MAX + 1], port[8];
    int family, type;       /* AF_UNSPEC, AF_INET, AF_INET6; SOCK_STREAM, SOCK_DGRAM */
    bool passive;           /* the address is one to listen at */
    bool canonical;         /* also find the canonical name of the host, for net_target.canonical */
    int result;             /* 0 or a negative errno */
    struct addrinfo *found; /* addresses; freed with the lookup */
    void *owner;
    void (*resolved)(struct net_lookup *l); /* called with the result, on the thread that waits for the watches; takes ownership of `l` */
};
int net_names_open(struct gateway_works **out, struct gateway_watches *watches, uint32_t askers);
/* Resolves a name without blocking. Takes ownership of `l`. Returns -EDQUOT if too many names are being resolved. */
int net_names_ask(struct gateway_works *all, struct net_lookup *l);
int net_names_numeric(struct net_lookup *l); /* if `host` is an address, converts it at once; a negative errno if `host` is a name */
void net_lookup_free(struct net_lookup *l);

/* --- net_udp.c --- */
/* The head of a datagram in a stream; the bytes of the datagram follow. In the stream `up` the head and the bytes are contiguous in the
 * ring. If they do not fit before the ring's end, they start at the beginning of the ring, and the space before the end is skipped. If a
 * head fits into the skipped space, the space begins with a head whose `bytes` is NET_DATAGRAM_SKIP. */
struct net_datagram {
    uint32_t bytes;
    uint8_t family; /* 4 or 6; 0: there is no address, because the socket has a peer */
    uint8_t zero;
    uint16_t port;
    uint8_t address[16]; /* address of the sender or receiver */
};
_Static_assert(sizeof(struct net_datagram) == 24, "net_datagram is 24 bytes in the ring");
#define NET_DATAGRAM_SKIP UINT32_MAX
#define NET_DATAGRAM_ROOM (sizeof(struct net_datagram) + 65535u) /* room for the largest datagram */
#define NET_DATAGRAM_RING (UINT64_C(128) << 10) /* smallest ring for datagrams, and the default: it has room for two datagrams */
_Static_assert(sizeof(struct net_datagram) + WEFT_NET_DATAGRAM_MAX <= 65536u, "a datagram fits into a NET_PIECE");
/* Reads the head at `at`. `have`: how many bytes have arrived; `gap`: how many bytes are left before the ring's end. Returns the length of
 * head and datagram, or how many bytes to skip. Returns 0 if the datagram is not complete, or -EPROTO if the head is invalid. */
int64_t net_datagram_read(struct net_datagram *out, const uint8_t *at, uint64_t have, uint64_t gap);
struct net_socket;
/* Sends one datagram from the ring, or drops the datagram and logs why. Returns what net_datagram_read() returns, or -EAGAIN if the socket
 * has no room now. */
int64_t net_udp_send(struct net_socket *s, const uint8_t *at, uint64_t have, uint64_t gap, bool *skip);
bool net_udp_receive(struct net_socket *s); /* receives one datagram. Returns false if there is no datagram now, or no room in the ring */
uint64_t net_udp_room(const struct gateway_stream *down); /* how much room the ring has; 0: too little for the largest datagram */

/* --- net_socket.c --- */
#define NET_SOCKETS_MAX 16384u
#define NET_PIECE       65536u
#define NET_PIECES      64u
struct net_piece { /* a buffer for bytes that are fetched from an asker's pool */
    struct net_piece *next;
    uint32_t asker;
    weft_op op;
    bool getting;
    uint32_t have, used;
    uint8_t bytes[NET_PIECE];
};
/* NET_LENT: the asker has a duplicate of the descriptor. The gateway does not use its own descriptor until the asker returns the duplicate
 */
enum net_state { NET_RESOLVES, NET_CONNECTS, NET_OPEN, NET_LISTENS, NET_LENT };
struct net_socket {
    struct gateway_listener listener;
    struct net *all;
    uint64_t id;
    uint32_t node; /* the asker */
    enum net_state state;
    uint32_t flags; /* WEFT_NET_... */
    struct gateway_watch watch;
    struct gateway_stream *down, *up;
    /* The request that opens the socket, until this request is answered. Later the CLOSE request, until all bytes are sent. */
    struct gateway_call *call;
    bool closing;            /* `call` is a CLOSE request */
    bool down_over, up_over; /* down_over: reading from the network has ended; up_over: writing to it has ended */
    struct gateway_call *accepts, **accepts_last;
    struct net_lookup *lookup;
    struct addrinfo *next_address; /* the address of `lookup` that is tried next */
    int tried;                     /* the errno of the last address that failed; 0: no address was tried */
    struct net_address address;    /* the address that is being tried */
    struct net_piece *piece;
    int64_t said; /* time at which a dropped datagram was last logged; 0: never */
    /* Fields for the list of sockets that net_tick() checks: */
    bool timed, wants_piece;
    int64_t deadline; /* INT64_MAX: there is no deadline */
    struct net_socket *timed_next, **timed_at;
};
struct net_asker {
    uint32_t sockets, pieces; /* how many sockets and buffers this asker has now */
};
struct net {
    struct gateway_server *server;
    struct net_asker *asker; /* [number of nodes for which the cluster has room] */
    struct gateway_table table;
    struct net_rules *rules;
    struct gateway_works *names;
    struct net_socket *timed;
    /* spare: buffers that no socket uses; orphans: buffers whose socket is gone, but to which a get may still write */
    struct net_piece *spare, *orphans;
    uint32_t pieces, spares; /* how many buffers exist; how many of them are in the list `spare` */
};
int net_socket_new(struct net *all, uint32_t node, uint32_t flags, struct net_socket **out);
/* Makes the two streams of a connection. `r` is the request that opens the connection. */
int net_socket_streams(struct net_socket *s, const weft_request *r);
int net_socket_watch(struct net_socket *s, int fd, unsigned events); /* closes `fd` on failure */
void net_socket_move(struct net_socket *s); /* moves bytes in both directions while that is possible. May free `s` */
void net_socket_time(struct net_socket *s, int64_t deadline);
void net_socket_untime(struct net_socket *s);
void net_socket_close(struct net_socket *s, struct gateway_call *c); /* when all bytes are sent, answers `c` and frees `s` */
void net_socket_drop(struct net_socket *s, struct gateway_call *c);  /* drops bytes that are not sent, answers `c` and frees `s` */
/* Frees `s` at once: drops bytes that are not sent, and resets the connection. Answers no requests. */
void net_socket_free(struct net_socket *s);
int64_t net_pieces_tick(struct net *all);
void net_pieces_free(struct net *all);

/* --- net_lend.c --- */
void net_lend(struct net_socket *s, struct gateway_call *c);   /* handles LEND */
void net_return(struct net_socket *s, struct gateway_call *c); /* handles RETURN. May free `s` */

/* --- net_open.c --- */
void net_open_connect(struct net *all, struct gateway_call *c); /* handles CONNECT and LISTEN */
void net_open_accept(struct net_socket *listener, struct gateway_call *c);
void net_open_resolved(struct net_lookup *l);
void net_open_timeout(struct net_socket *s); /* called when the deadline of `s` is over */

/* --- requests of the asker --- */
enum net_kind {
    /* Connects. data: the host, without a zero byte. arg[0]: port. arg[1]: number of the asker's stream for received bytes; arg[2], arg[3]:
     * address and size of this stream's ring. arg[4] to arg[6]: number, address and size for the stream of bytes to send. arg[7], arg[8]:
     * sizes of the system's socket buffers for receiving and sending; 0: the system's default. flags: WEFT_NET_.... Answer: word 0: the
     * socket's number; word 1: number of the gateway's stream for bytes to send; payload: the addresses of the socket and of its peer, each
     * with a zero byte */
    NET_CONNECT = 1,
    NET_LISTEN, /* listens: as CONNECT, but without streams. arg[9]: the backlog */
    NET_ACCEPT, /* accepts a connection. handle: the listener; arg[1] to arg[6] and the answer: as in CONNECT. Answered when there is a
                   connection */
    /* closes `handle`. arg[0]: 1: drop bytes that are not sent. Answered when all bytes are sent and the gateway no longer uses the rings
     */
    NET_CLOSE,
    /* lends `handle`, a connection, to an asker of the same host. The asker gets the connection's descriptor over the side connection
       (fab_side_give(), with arg[0]). Answered when all received bytes are in the asker's ring. -EAGAIN: some bytes to send are not sent
       yet. -EOPNOTSUPP: this connection is never lent */
    NET_LEND,
    NET_RETURN, /* the asker no longer reads or writes the descriptor of `handle` */
};

#endif
