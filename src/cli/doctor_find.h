/* SPDX-License-Identifier: MIT
 *
 * What the files with checks share: doctor_find.c and doctor_beside.c.
 */
#ifndef WEFT_CLI_DOCTOR_FIND_H
#define WEFT_CLI_DOCTOR_FIND_H

#include "cli/doctor.h"

/* In the order of likelihood: the first is printed first. */
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
    MEMLOCK,
    GPU
};

struct doctor {
    const struct doctor_facts *facts;
    struct doctor_finding *out;
    unsigned count, usable, proposed; /* proposed: addresses */
    json_t *devices;                  /* a list, or NULL: not known */
    bool mac;
};

/* The finding to fill in; the last one again when there are too many. */
struct doctor_finding *doctor_add(struct doctor *d, const char *id, enum rank rank, bool stops);
#define SAY(field, ...) snprintf((field), sizeof(field), __VA_ARGS__)

/* --- facts --- */
const char *doctor_fact(const struct doctor *d, enum doctor_fact which);
/* One line of a text, without the blanks around it; false at the end. */
bool doctor_next_line(const char **at, char *line, size_t len);
/* What follows "KEY:" at the start of some line; false when no line has it. */
bool doctor_value_of(const char *text, const char *key, char *out, size_t len);
bool doctor_is_number(const char *text);
const char *doctor_text_of(const json_t *device, const char *key); /* "": it has none */

/* --- doctor_beside.c --- */
void doctor_check_bridge(struct doctor *d);
void doctor_check_memlock(struct doctor *d);
void doctor_check_gpu(struct doctor *d);

#endif
