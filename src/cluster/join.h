/* SPDX-License-Identifier: MIT
 *
 * Shared by the files that implement joining. Each file calls only those listed before it:
 *
 *   wire.c     sends and receives whole messages; computes the MACs that prove knowledge of the secret
 *   address.c  listens at and connects to addresses
 *   card.c     the first messages, cards, the MACs over them
 *   pmix.c     talks to a launcher that speaks PMIx
 *   meet.c     finds the address of node 0
 *   hub.c      keeps every node's connection to node 0 until all pairs have connected
 *   pairs.c    connects every pair of nodes
 *   grow.c     agreement of the members on the joining node and its rank
 *   enter.c    a node that joins a running cluster
 *   join.c     connects every node to node 0 and exchanges the cards
 *   newcomer.c connects a member to the joining node
 *   door.c     the thread of a member that lets nodes join
 *
 * Words:
 *
 *   card      a node's description of itself: rank, host, addresses
 *   guest     a connection that node 0 has accepted, until all nodes have joined
 *   hub       the connections of all nodes to node 0, until all pairs have connected
 *   notice    data that a node publishes through a launcher before joining
 *   caller    a connection to this node's listeners for side connections, until its token has arrived
 *   token     the first message on a side connection: names the two nodes, and proves that the caller has joined
 *   member    a node of a running cluster
 *   newcomer  a node that joins a running cluster
 *   door      the member through which a newcomer joins; its thread
 *   visitor   a connection of a newcomer that waits for its turn to join
 *   ticket    the random session number of one newcomer
 */
#ifndef WEFT_JOIN_H
#define WEFT_JOIN_H

#include <poll.h>
#include <pthread.h>

#include "cluster/cluster.h"
#include "cluster/meet.h"
#include "cluster/wire.h"
#include "fabric/fabric.h"

#define JOIN_STRANGER_WAIT (1 * WEFT_SECOND) /* time-out for sending the challenge to an unauthenticated connection */
#define JOIN_STRANGERS     16u               /* how many unauthenticated connections are allowed, in addition to one for each node */

struct join_listener {
    int fd; /* -1: there is no listener */
    char bound[WIRE_ADDRESS];
};

/* The connection between node 0 and another node, at either end. */
struct join_hub {
    int fd; /* -1: closed */
    uint32_t rank;
    bool done; /* the peer has sent its report. A node reports when it is connected to all others; node 0, when all nodes have reported */
};

struct join {
    struct weft_node *w;
    const struct cluster_settings *settings;
    struct meet_place place;
    int64_t deadline;
    uint8_t key[32]; /* derived from the secret */
    uint8_t session[WIRE_NONCE];
    struct wire_card *cards; /* [size] */
    /* Listeners for side connections. here: for nodes of this host; away: for nodes of other hosts, if node 0 is reached by TCP. */
    struct join_listener here, away;
    struct join_hub *hubs; /* [hub_count] */
    struct pollfd *fds;    /* used by join_hub_wait() */
    uint32_t hub_count;
    bool told;        /* a node's failure was already reported: by node 0 to all others, or to this node */
    char address[64]; /* numeric address at which other hosts reach `away`; "": none */
    char scope[32];   /* if this node's address is link-local: the interface towards node 0, as in "%eth0"; else "" */
};

/* --- wire.c --- */
int join_stopped(void); /* returns -EINTR, with an error text, if cluster_stopped() is true; else 0 */
int join_wait(int fd, short events, int64_t deadline);
int join_read(int fd, void *buf, size_t len, int64_t deadline);
int join_write(int fd, const void *buf, size_t len, int64_t deadline);
/* Whether the user of the peer process may join. Over a Unix socket, only this user and root may join. Over TCP, always true, because the
 * secret decides. *pid: the peer process; 0: not known. */
bool join_user_allowed(int fd, int *pid);
void join_token(struct wire_token *t, const struct join *j, uint32_t from, uint32_t to);

void join_mac(uint8_t out[WIRE_MAC], const uint8_t key[32], const char *what, const void *a, size_t a_len, const void *b, size_t b_len,
              const void *c, size_t c_len);

/* --- hub.c --- */
/* Report the success or failure of node `rank` to the other end of `fd`. `fd` connects a node and node 0, or a newcomer and its door (the
 * member through which it joins). */
void join_news_send(const struct join *j, int fd, uint32_t rank, int error, const char *text);
bool join_news_ok(const struct join *j, const struct wire_news *m);
int join_hub_add(struct join *j, int fd, uint32_t rank); /* takes ownership of the descriptor, also on failure */
/* Wait until one of `others` is readable, a node has sent a report, `until` has passed, or one second has passed. *ready: the first
 * readable descriptor of `others`, or -1. `count` is at most 2 * size + JOIN_STRANGERS. Returns a negative errno if a node has failed; the
 * error text says which node, and why. */
int join_hub_wait(struct join *j, const int *others, uint32_t count, int64_t until, int *ready);
/* Report to the other nodes that this node is connected to all nodes (`rc` 0), or has failed with `rc` and base_error(). After success,
 * wait until all nodes are connected. Returns the result of joining. */
int join_hub_end(struct join *j, int rc);

/* --- pairs.c --- */
int join_listen_here(struct join *j);
/* Listen at the local address of `fd`, a TCP socket, on a port that the system chooses. Does nothing if `fd` is not a TCP socket. */
int join_listen_away(struct join *j, int fd);
/* Listen for nodes of other hosts at the host of the address `grow` (WEFT_GROW). Does nothing if such a listener is open, or if no other
 * host can reach `grow`. */
int join_listen_for(struct join *j, const char *grow);
void join_unlisten(struct join *j);
/* Replace the host in `address` ("HOST:PORT") by the peer's address of `fd`. Does nothing if `fd` is no TCP socket. */
void join_correct_host(char address[WIRE_ADDRESS], int fd);
/* If node 0 listens at a wildcard address, use the address at which the first node of another host has reached node 0. */
void join_adopt_address(struct join *j, const struct wire_card *from, int fd);
int join_pairs(struct join *j);
/* A newcomer: connects to all members in j->cards. */
int join_pairs_late(struct join *j);

/* An accepted side connection that has not authenticated yet. All such connections are polled together, so that a silent one does not delay
 * the others. */
struct join_caller {
    int fd, pid;
    int64_t came; /* when the connection was accepted */
    size_t got;   /* bytes of `token` received */
    struct wire_token token;
};
struct join_callers {
    struct join_caller *list; /* oldest first */
    int *fds;                 /* descriptors to wait for: first those of the callers, then those of the listeners */
    uint32_t count, most;
};
int join_callers_open(struct join_callers *cs, uint32_t most);
void join_callers_close(struct join_callers *cs);
/* accepts a connection. Returns a negative errno if the resources for connections are used up */
int join_caller_take(struct join_callers *cs, int listener);
/* Reads available bytes of the token. Returns 1 if the token is complete, 0 if it is not, or a negative errno. */
int join_caller_hear(struct join_caller *c);
void join_caller_forget(struct join_callers *cs, uint32_t i);
void join_caller_refuse(struct join_callers *cs, uint32_t i, const char *why);
#define JOIN_CALLER_NAME 96
/* A caller's name for messages: its host, or its process on this host. */
void join_caller_name(const struct join_caller *c, char out[JOIN_CALLER_NAME]);
/* Connects the fabric to the node of this card over a side connection. Takes ownership of the descriptor, also on failure. */
int join_pair_up(struct weft_node *w, const struct wire_card *card, int fd, int pid, int64_t deadline);

/* --- card.c --- */
/* The data for this node's card. */
struct join_self {
    uint32_t rank;
    uint64_t pool_bytes;
    int64_t liveness_ns;
    bool grows;
    uint8_t host_id[16];
};
void join_card_make(struct wire_card *c, const struct join *j, const struct join_self *self);
bool join_card_ok(const struct wire_card *c, uint32_t rank);
void join_proof_mac(uint8_t out[WIRE_MAC], const struct join *j, const struct wire_hello *hello, const struct wire_challenge *challenge,
                    const struct wire_card *card);
void join_answer_mac(uint8_t out[WIRE_MAC], const struct join *j, const struct wire_hello *hello, const struct wire_answer *answer,
                     const struct wire_card *cards);
/* Connects to `address`, sends the hello with a new nonce and receives the challenge. Returns the socket. `who`: who should answer. */
int join_reach(const char *who, const char *address, int64_t connect_until, int64_t answer_until, struct wire_hello *hello,
               struct wire_challenge *challenge);
/* how long after its deadline a node waits for the error message of node 0 or the door, which has more details */
#define JOIN_ANSWER_GRACE (2 * WEFT_SECOND)
/* Sends the proof and receives the answer. The caller has filled in the proof's card. Returns 0, or a negative errno without an error text:
 * -ECONNRESET or -EPIPE if the other side has refused the proof, or ended. */
int join_prove(struct join *j, int fd, const struct wire_hello *hello, const struct wire_challenge *challenge, struct wire_proof *proof,
               struct wire_answer *answer);
void join_key(uint8_t key[32], const struct cluster_settings *s);

/* --- enter.c --- */
void join_entry_free(struct join *j); /* NULL allowed */
/* The second step of joining a running cluster, when the node is open: connects to all members. */
int join_enter(struct weft_node *w, struct cluster_settings *s);

/* --- grow.c: what each member knows --- */
#define GROW_MAGIC UINT64_C(0x7765667467723031) /* "weftgr01" */
enum grow_kind { GROW_ASK = 1, GROW_ANSWER, GROW_JOINED, GROW_END };

/* A message between members. */
struct grow_message {
    uint64_t magic;
    uint64_t attempt; /* random number of the attempt, chosen by the door */
    uint32_t kind;
    uint32_t number; /* the newcomer's rank */
    /* GROW_ANSWER: 0: the member agrees; EBUSY: another node is joining; EEXIST: the rank `number` or a higher one is used */
    int32_t answer;
    uint32_t highest; /* GROW_ANSWER: the highest number that the member knows of */
};
struct grow_ask {               /* payload of GROW_ASK: who joins */
    uint8_t ticket[WIRE_NONCE]; /* session of the newcomer. The tokens of the newcomer's side connections are derived from it */
    struct wire_card card;      /* the newcomer's card, with its number */
};
/* Whether the bytes are a valid message. A pure function. */
bool grow_message_ok(const struct grow_message *m, const void *payload, size_t payload_len);
/* Choose the next rank. Returns -ENOSPC, with an error text for the newcomer, if all ranks are used up or `alive` is the maximum number of
 * nodes. */
int grow_next_number(uint32_t highest, uint32_t alive, uint32_t *number);

enum grow_peer { GROW_NOT_ASKED, GROW_ASKED, GROW_AGREED, GROW_HAS_JOINED };

struct grow_joining { /* the node that is joining, as known to this member */
    bool active, connecting;
    uint32_t door, number;
    uint64_t attempt;
    int64_t until;
    struct grow_ask ask;
};

#define GROW_UNSENT 64u
struct grow_unsent { /* a message that could not be sent because a queue was full */
    uint32_t to;
    int64_t until; /* when the attempt to let the node join ends */
    struct grow_message message;
};

struct grow {
    struct weft_node *w;
    struct join j;            /* key and listeners; `session` is the ticket of the joining node */
    char address[128];        /* where this node listens for newcomers; "": nowhere */
    int64_t patience_ns;      /* how long a node may take to join */
    pthread_mutex_t lock;     /* protects what follows, up to `thread` */
    struct wire_card **cards; /* [room]: the card of each member. NULL: it has not arrived, or the member has left */
    uint32_t highest;         /* the highest rank that this node knows to have been given to a node */
    struct grow_joining joining;
    /* Used while a newcomer joins through this node (this node is its door): */
    uint64_t attempt;
    uint8_t *peers; /* [room]: enum grow_peer */
    int refused;    /* the answer of a member that did not agree; 0: there was no such answer */
    struct grow_unsent unsent[GROW_UNSENT];
    uint32_t unsent_count;
    pthread_t thread;
    bool started;
    int wake[2];
    _Atomic bool stopping;
    _Atomic int busy_fd; /* the side connection on which this node connects to a newcomer now; -1: none */
};

int grow_open(struct weft_node *w, const struct cluster_settings *s, struct join *j); /* takes listeners and cards over from `j` */
struct grow *grow_of(struct weft_node *w);
/* These functions never wait, because a member may be stopped. grow_try() sends a message or returns an error. grow_send() stores the
 * message if grow_try() fails. grow_send_again(), called by the thread of door.c, sends stored messages, and returns true if some messages
 * are left. If the store is full, the message is dropped, and the attempt to which it belongs ends by time-out. */
int grow_try(struct grow *g, uint32_t to, const struct grow_message *m, const struct grow_ask *ask);
void grow_send(struct grow *g, uint32_t to, const struct grow_message *m);
bool grow_send_again(struct grow *g);
void grow_end(struct grow *g, uint64_t attempt, uint32_t door); /* this member forgets the attempt */
void grow_wake(struct grow *g);

/* --- newcomer.c --- */
/* Handles a side connection whose token is complete. Takes ownership of its descriptor. Blocks while the two nodes connect. */
void grow_connect(struct grow *g, struct join_caller *c);

#endif
