/* SPDX-License-Identifier: MIT
 *
 * Shared by the files about settings: settings_table.c (the table), settings.c (precedence of the sources), settings_values.c (parsing),
 * and secret.c (the secret).
 */
#ifndef WEFT_SETTINGS_H
#define WEFT_SETTINGS_H

#include "cluster/cluster.h"

enum kind { NUMBER, BYTES, DURATION, FLAG, ADDRESS, CHOICE, LANES, RAIL_LIST, PATH, SECRET, ADDRESSES };

/* Order of the rows in `weft config`. */
enum id {
    RANK,
    SIZE,
    COORD,
    GROW,
    JOIN,
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
    GPU_RDMA,
    GID_INDEX,
    GUARD,
    GUARD_SOCKET,
    TB_LANES,
    TB_CHECK,
    OFI_LIBRARY,
    OFI_PROVIDER,
    OFI_INTERFACE,
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
    SERVE,
    NAMES,
    NET_RULES,
    NET_SOCKETS,
    FILE_ROOT,
    FILE_CACHE,
    SSH,
    CLUSTER,
    LOG,
    COUNT
};

struct setting {
    const char *name, *variable;
    const char *also[4]; /* other environment variables for the setting, of MLX and JACCL; the first one that is set is used */
    const char *fallback, *help;
    const char *choices; /* CHOICE: "a|b" */
    int64_t min, max;    /* NUMBER, BYTES, DURATION (ns) */
    enum kind kind;
    size_t into, into_bytes; /* offset and size of the member of struct cluster_settings; size 0: settings.c stores the value */
    bool in_hostfile;
};

extern const struct setting settings_table[COUNT];

/* The unparsed text of a setting, and its source. */
struct found {
    const char *text;
    enum cluster_source source;
    char own[32];   /* buffer of `text` for a value that was given as a number */
    char from[160]; /* "environment WEFT_POOL" */
};

void settings_take(struct found *f, const char *text, enum cluster_source source, const char *where, const char *what);

/* The name to use in errors: the name of the variable if the value is from the environment, otherwise the name of the setting. */
const char *settings_speaker(enum id id, const struct found *f);
/* Fail with -EINVAL: "NAME='TEXT': expected ...". */
int settings_bad(enum id id, const struct found *f, const char *expected);

/* Parse a text and check the value against the table. A wrong value is reported by settings_bad(), and -EINVAL returned. */
/* Also stores the value in the member of `out` that the table names, if it names one. */
int settings_read(enum id id, const struct found *f, struct cluster_settings *out);
int settings_read_number(enum id id, const struct found *f, int64_t *out);
int settings_read_lanes(const struct found *f, struct fab_lane *lanes, uint32_t *count);
int settings_read_rails(const struct found *f, struct fab_options *out);
int settings_read_address(enum id id, const struct found *f, char *out, size_t len);
int settings_read_secret(const struct found *found, struct cluster_settings *out);

#endif
