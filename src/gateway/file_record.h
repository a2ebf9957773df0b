/* SPDX-License-Identifier: MIT
 *
 * A file that a record has opened, at the asker (file_record.c), and the pieces of it that records read (file_record_read.c,
 * file_record_get.c).
 */
#ifndef WEFT_GATEWAY_FILE_RECORD_H
#define WEFT_GATEWAY_FILE_RECORD_H

#include "gateway/file_handle.h"
#include "gateway/record.h"

#define FILE_RECORD_SLOTS 16u

enum file_record_state {
    PIECE_NONE,
    PIECE_ASKED,
    PIECE_NAMED, /* there is a lease of a piece that is to be copied to this node's pool as a whole */
    PIECE_GETS,  /* a copy to this node's pool is under way */
    PIECE_READY, /* records can read the piece: there is a lease of the gateway's piece, or a copy */
    PIECE_FAILED
};
struct file_record_get;
struct file_record_slot {
    struct file_record *f;
    enum file_record_state state;
    bool fresh; /* no record has used the slot yet */
    bool keeps; /* the piece was requested with FILE_KEEPS */
    bool lost;  /* another node's copy was wrong, so the piece was requested with FILE_HERE */
    bool tell;  /* the gateway wants to know when the copy has arrived */
    int error;
    uint32_t copies; /* number of records that are copying from the piece */
    uint64_t index, writes;
    uint64_t lease;            /* 0: the slot has no lease */
    uint64_t hash, generation; /* hash and generation of the piece that the gateway has named */
    weft_gaddr at;
    uint32_t bytes;
    uint64_t read;          /* how many bytes records have read from the piece */
    bool call, streams;     /* of the last record that has read from the piece. call: the next record continues the same call of a kernel;
                               streams: as in struct file_range */
    struct file_kept *kept; /* the copy; NULL: there is no copy */
    struct file_record_get *get;
    int64_t since, until; /* since: time of the request, the answer or the last use; until: end of the lease by this node's clock */
};
/* An open file. gateway.lock protects all members except those that are set when the file is opened. */
struct file_record {
    struct gateway_object object;
    uint32_t node;
    uint64_t there;  /* the file's number at the gateway; 0: not open */
    uint64_t writes; /* incremented when a write begins or ends, and when the file has changed. Pieces that were requested before that may
                        be of an old generation */
    weft_file_info info;
    bool far;              /* the gateway is on another host */
    struct file_pace pace; /* how fast the pieces arrive */
    int64_t asked, pause;  /* asked: when the last record arrived; pause: the longest time between two records, since pieces were last
                            * requested in advance */
    struct file_record_slot slot[FILE_RECORD_SLOTS];
};

static inline weft_request file_record_request(const struct file_record *f, enum file_kind kind)
{
    return (weft_request){
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = (uint16_t)kind, .node = f->node, .handle = f->there};
}

/* --- file_record_get.c --- */
/* Fills a request for the piece of a slot. The request also ends the lease that the slot has. The caller holds gateway.lock, and calls
 * file_record_ask() next. */
void file_record_ask_of(struct file_record *f, struct file_record_slot *s, uint32_t flags, weft_request *ask);
int file_record_ask(struct gateway *g, struct file_record_slot *s, const weft_request *ask);
/* Takes the next steps for all pieces that are to be copied to this node's pool. `wanted`: the piece that is needed before the others. */
void file_record_move(struct gateway *g, struct file_record *f, uint64_t wanted);

/* --- file_record_read.c --- */
/* Reads the bytes that the record requests. GATEWAY_LATER: the record is answered, and the object released, when the bytes are copied. */
int file_record_read(struct gateway *g, struct file_record *f, weft_request *r);

#endif
