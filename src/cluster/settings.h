/* SPDX-License-Identifier: MIT
 *
 * What the files about settings share: the table (settings_table.c), where values come from (settings.c), what they mean
 * (settings_values.c), and the secret (secret.c).
 */
#ifndef WEFT_SETTINGS_H
#define WEFT_SETTINGS_H

#include "cluster/cluster.h"

enum kind { NUMBER, BYTES, DURATION, FLAG, ADDRESS, CHOICE, LANES, RAIL_LIST, PATH, SECRET };

/* Order of the rows in `weft config`. */
enum id {
    RANK,
    SIZE,
    COORD,
    HOSTFILE,
    PMIX_LIBRARY,
    SECRET_TEXT,
    SECRET_FILE,
    TRANSPORT,
    COPY_THREADS,
    VERBS_LIBRARY,
    DEVICE,
    RAILS,
    STRIPE,
    GID_INDEX,
    GUARD,
    TB_LANES,
    TB_CHECK,
    POOL,
    POOL_HUGE,
    POOL_LOCK,
    POOL_PREFAULT,
    DEADLINE,
    SAY_AFTER,
    JOIN_TIMEOUT,
    LIVENESS,
    RECONNECT,
    SPIN,
    SSH,
    LOG,
    COUNT
};

struct setting {
    const char *name, *variable;
    const char *also[4]; /* MLX's and JACCL's names, first one first */
    const char *fallback, *help;
    const char *choices; /* CHOICE: "a|b" */
    int64_t min, max;    /* NUMBER, BYTES, DURATION (ns) */
    enum kind kind;
    size_t into, into_bytes; /* the member of struct cluster_settings that has the value; 0 bytes: settings.c says what becomes of it */
    bool in_hostfile;
};

extern const struct setting settings_table[COUNT];

/* What was found for a setting, still as text. */
struct found {
    const char *text;
    enum cluster_source source;
    char own[32];   /* an option's number as text */
    char from[160]; /* "environment WEFT_POOL" */
};

void settings_take(struct found *f, const char *text, enum cluster_source source, const char *where, const char *what);

/* Who said it: a variable's name, or the setting's. */
const char *settings_speaker(enum id id, const struct found *f);
/* -EINVAL, with the sentence. */
int settings_bad(enum id id, const struct found *f, const char *expected);

/* Text to value, within what the table allows; else -EINVAL, with a sentence. */
int settings_read(enum id id, const struct found *f, struct cluster_settings *out); /* into the member that the table names, if any */
int settings_read_number(enum id id, const struct found *f, int64_t *out);
int settings_read_lanes(const struct found *f, struct fab_lane *lanes, uint32_t *count);
int settings_read_rails(const struct found *f, struct fab_options *out);
int settings_read_address(enum id id, const struct found *f, char *out, size_t len);
int settings_read_secret(const struct found *found, struct cluster_settings *out);

#endif
