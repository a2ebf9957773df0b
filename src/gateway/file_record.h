/* SPDX-License-Identifier: MIT
 *
 * A file that a record has opened, at the asker (file_record.c), and its pieces that records read (file_record_read.c).
 */
#ifndef WEFT_GATEWAY_FILE_RECORD_H
#define WEFT_GATEWAY_FILE_RECORD_H

#include "gateway/file.h"
#include "gateway/record.h"

#define FILE_RECORD_SLOTS 16u

enum file_record_state { PIECE_NONE, PIECE_ASKED, PIECE_READY, PIECE_FAILED };
struct file_record_slot {
    struct file_record *f;
    enum file_record_state state;
    bool fresh; /* no record has used the slot yet */
    int error;
    uint32_t copies; /* number of records that are copying from the piece */
    uint64_t index, writes;
    uint64_t lease;
    weft_gaddr at;
    uint32_t bytes;
    int64_t since, until; /* since: time of the request, the answer or the last use; until: end of the lease by this node's clock */
};
/* An open file. gateway.lock protects all members except those that are set when the file is opened. */
struct file_record {
    struct gateway_object object;
    uint32_t node;
    uint64_t there;  /* the file's number at the gateway; 0: not open */
    uint64_t writes; /* incremented when a write begins and ends: pieces that were requested before may be of an old generation */
    weft_file_info info;
    struct file_record_slot slot[FILE_RECORD_SLOTS];
};

static inline weft_request file_record_request(const struct file_record *f, enum file_kind kind)
{
    return (weft_request){
        .version = WEFT_REQUEST_VERSION, .service = WEFT_SERVICE_FILE, .kind = (uint16_t)kind, .node = f->node, .handle = f->there};
}

/* --- file_record_read.c --- */
/* Reads what the record names. GATEWAY_LATER: when the bytes are copied, the record is answered and the object released. */
int file_record_read(struct gateway *g, struct file_record *f, weft_request *r);

#endif
