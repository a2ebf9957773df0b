/* SPDX-License-Identifier: MIT
 *
 * Shared by the files that find problems: doctor_find.c, doctor_beside.c, doctor_networks.c, doctor_gpus.c and doctor_text.c.
 */
#ifndef WEFT_CLI_DOCTOR_FIND_H
#define WEFT_CLI_DOCTOR_FIND_H

#include "cli/doctor.h"

/* Causes, the most likely one first. Findings are printed in this order. */
enum rank {
    UNREADABLE,
    NO_LIBRARY,
    OLD_SYSTEM,
    THUNDERBOLT_4,
    NOT_ENABLED,
    NO_ACCESS,
    NO_DEVICE,
    PORT_DOWN,
    NO_GID,
    NO_DOMAINS,
    NO_QUEUE_PAIRS,
    DEVICE_ERROR,
    NO_CONNECTIONS,
    BRIDGE,
    NO_NETWORK,
    SLOW_PATH,
    MEMLOCK,
    GPU,
    GPU_STAGED
};

struct doctor {
    const struct doctor_facts *facts;
    struct doctor_finding *out;
    unsigned count, usable, proposed; /* proposed: number of IP addresses that remedies have proposed so far */
    json_t *devices;                  /* the list of devices; NULL: not known */
    bool mac;
    bool by_libfabric; /* nodes use a better network than TCP, by libfabric */
};

/* Add a finding, and return it for the caller to fill in. If there are too many findings, the new one overwrites the last one. */
struct doctor_finding *doctor_add(struct doctor *d, const char *id, enum rank rank, bool stops);
/* adds the finding that the fact `which` cannot be parsed */
void doctor_unreadable(struct doctor *d, enum doctor_fact which, const char *why, const char *remedy);
void doctor_plain(char *text); /* replaces bytes that a terminal might take for a command */
#define SAY(field, ...) snprintf((field), sizeof(field), __VA_ARGS__)

/* --- facts --- */
const char *doctor_fact(const struct doctor *d, enum doctor_fact which);
/* Get the next line of a text, without blanks around it; false at the end. */
bool doctor_next_line(const char **at, char *line, size_t len);
/* Get the text after "KEY:" in the line that starts with it; false if there is no such line. */
bool doctor_value_of(const char *text, const char *key, char *out, size_t len);
/* Get VALUE of the word "KEY=VALUE" in a line. Returns "?" if the line has no such word. */
const char *doctor_word_of(const char *line, const char *key, char out[64]);
bool doctor_is_number(const char *text);
const char *doctor_text_of(const json_t *device, const char *key); /* "" if the device has no such text */

/* --- doctor_beside.c --- */
void doctor_check_bridge(struct doctor *d);
void doctor_check_memlock(struct doctor *d);
void doctor_check_slow_path(struct doctor *d); /* call this after the devices were counted */
void doctor_check_gpu(struct doctor *d);

/* --- doctor_networks.c --- */
void doctor_check_networks(struct doctor *d);

/* --- doctor_gpus.c --- */
void doctor_check_staged(struct doctor *d);

#endif
