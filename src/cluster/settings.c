/* SPDX-License-Identifier: MIT
 *
 * Settings: one table of them all, resolved in one order: option > environment > hostfile > default. What a setting
 * is, how it is written and where it may stand is said only in the table.
 */
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cluster/cluster.h"

#define SECRET_MAX 1024u

enum kind { NUMBER, BYTES, DURATION, FLAG, ADDRESS, CHOICE, LANES, RAIL_LIST, PATH, SECRET };

/* Order of the rows in `weft config`. */
enum id {
    RANK, SIZE, COORD, HOSTFILE, SECRET_TEXT, SECRET_FILE, TRANSPORT, COPY_THREADS, VERBS_LIBRARY, DEVICE, RAILS, STRIPE, GID_INDEX, GUARD, TB_LANES, TB_CHECK, POOL, POOL_HUGE,
    POOL_LOCK, POOL_PREFAULT,
    DEADLINE, SAY_AFTER, JOIN_TIMEOUT, LIVENESS, RECONNECT, SPIN, SSH, LOG, COUNT
};
_Static_assert(COUNT <= CLUSTER_SETTINGS_MAX, "rows for `weft config`");

struct setting {
    const char *name, *variable;
    const char *also[4]; /* MLX's and JACCL's names, first one first */
    const char *fallback, *help;
    const char *choices; /* CHOICE: "a|b" */
    int64_t min, max;    /* NUMBER, BYTES, DURATION (ns) */
    enum kind kind;
    bool in_hostfile;
};

#define NODES ((int64_t)WEFT_MAX_NODES)
#define LONG_TIME (1000 * 3600 * WEFT_SECOND)

static const struct setting table[COUNT] = {
    [RANK] = {.name = "rank", .variable = "WEFT_RANK", .also = {"JACCL_RANK", "MLX_RANK"}, .fallback = "0",
              .kind = NUMBER, .max = NODES - 1, .help = "this node's number, from 0; needed when there are others"},
    [SIZE] = {.name = "size", .variable = "WEFT_SIZE", .fallback = "1", .kind = NUMBER, .min = 1, .max = NODES,
              .help = "nodes in the cluster, 1 to 1024; else as many as the hostfile has"},
    [COORD] = {.name = "coord", .variable = "WEFT_COORD", .also = {"JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"},
               .fallback = "", .kind = ADDRESS,
               .help = "where node 0 listens: HOST:PORT, unix:PATH or unix:@NAME; else host 0 of the hostfile"},
    [HOSTFILE] = {.name = "hostfile", .variable = "WEFT_HOSTFILE",
                  .also = {"MLX_HOSTFILE", "JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"}, .fallback = "", .kind = PATH,
                  .help = "file that lists the hosts (weft's JSON, or MLX's)"},
    [SECRET_TEXT] = {.name = "secret", .variable = "WEFT_SECRET", .fallback = "", .kind = SECRET,
                     .help = "who joins must know it; 1 to 1024 bytes; a file is safer"},
    [SECRET_FILE] = {.name = "secret_file", .variable = "WEFT_SECRET_FILE", .fallback = "", .kind = PATH,
                     .in_hostfile = true, .help = "file with the secret, readable by its owner only"},
    [TRANSPORT] = {.name = "transport", .variable = "WEFT_TRANSPORT", .fallback = "", .kind = CHOICE,
                   .choices = "shm|rc|tb|rdma", .in_hostfile = true,
                   .help = "force one: shm, rc, tb, or rdma (tb where devices have no RC, else rc); else the best for each peer"},
    [COPY_THREADS] = {.name = "copy_threads", .variable = "WEFT_COPY_THREADS", .fallback = "0", .kind = NUMBER, .max = FAB_COPY_THREADS_MAX,
                      .in_hostfile = true,
                      .help = "shm: threads that copy 4 MiB and more together, 1 to 16; 0: by the processors a node has, at most 6"},
    [VERBS_LIBRARY] = {.name = "verbs_library", .variable = "WEFT_VERBS_LIBRARY", .fallback = "", .kind = PATH,
                       .help = "the verbs library; else libibverbs.so.1, on macOS librdma.dylib"},
    [DEVICE] = {.name = "device", .variable = "WEFT_DEVICE", .fallback = "", .kind = PATH, .in_hostfile = true,
                .help = "the RDMA device to use, as `weft devices` names it; else the best"},
    [RAILS] = {.name = "rails", .variable = "WEFT_RAILS", .fallback = "", .kind = RAIL_LIST, .in_hostfile = true,
               .help = "rc: how many devices to use together, 1 to 4, or which: NAME,NAME; else all as fast as the best, or WEFT_DEVICE"},
    /* Spreading adds a round trip, the read that proves a piece to be there, of a few microseconds; from here on even a link of
     * 200 Gbit/s saves as much by carrying only half. Over softverbs, where rails add nothing, it costs nothing from here on. */
    [STRIPE] = {.name = "stripe", .variable = "WEFT_STRIPE", .fallback = "256K", .kind = BYTES, .min = 32 << 10, .max = INT64_C(1) << 40,
                .in_hostfile = true, .help = "rc: puts and gets of so many bytes are spread over all rails to their node"},
    [GID_INDEX] = {.name = "gid_index", .variable = "WEFT_GID_INDEX", .fallback = "-1", .kind = NUMBER, .min = -1,
                   .max = 255, .in_hostfile = true,
                   .help = "entry of the devices' GID tables to use; -1: choose, an IPv4 address first"},
    [GUARD] = {.name = "guard", .variable = "WEFT_GUARD", .fallback = "", .kind = PATH,
               .help = "tb: the command weft, which then owns the devices in a process of its own; else the node does"},
    /* Small messages carry the ends of transfers, large ones their bulk; two large lanes, so that one is under way while the
     * other is repaired. 16 messages of 128 KiB were clean and fastest between Macs; more under way only adds to what is lost
     * when a port falls behind. */
    [TB_LANES] = {.name = "tb_lanes", .variable = "WEFT_TB_LANES", .fallback = "32K:32,128K:16,128K:16", .kind = LANES,
                  .in_hostfile = true,
                  .help = "tb: message size and messages under way of each bulk lane, as `weft probe link` proposes them"},
    /* Every byte is the default because these links are known to damage data without a word. */
    [TB_CHECK] = {.name = "tb_check", .variable = "WEFT_TB_CHECK", .fallback = "full", .kind = CHOICE,
                  .choices = "full|frames", .in_hostfile = true,
                  .help = "tb: of bulk data check every byte (full), or 64 bytes of every frame (frames): quicker, sees less"},
    [POOL] = {.name = "pool", .variable = "WEFT_POOL", .fallback = "256M", .kind = BYTES, .min = 1 << 20,
              .max = (int64_t)WEFT_MAX_POOL_BYTES, .in_hostfile = true,
              .help = "memory that this node gives to the cluster, from 1M"},
    [POOL_HUGE] = {.name = "pool_huge", .variable = "WEFT_POOL_HUGE", .fallback = "no", .kind = FLAG,
                   .in_hostfile = true, .help = "huge pages for the pool"},
    [POOL_LOCK] = {.name = "pool_lock", .variable = "WEFT_POOL_LOCK", .fallback = "no", .kind = FLAG,
                   .in_hostfile = true, .help = "lock the pool in memory"},
    [POOL_PREFAULT] = {.name = "pool_prefault", .variable = "WEFT_POOL_PREFAULT", .fallback = "no", .kind = FLAG,
                       .in_hostfile = true, .help = "touch every page of the pool at the start"},
    [DEADLINE] = {.name = "deadline", .variable = "WEFT_DEADLINE", .fallback = "30s", .kind = DURATION,
                  .min = WEFT_MS, .max = LONG_TIME, .in_hostfile = true,
                  .help = "how long an operation waits unless told otherwise; when it is set, barriers, locks and the like too"},
    [SAY_AFTER] = {.name = "say_after", .variable = "WEFT_SAY_AFTER", .fallback = "30s", .kind = DURATION,
                   .min = WEFT_MS, .max = LONG_TIME, .in_hostfile = true,
                   .help = "a barrier or the like, which waits as long as the others live, says after so long for whom"},
    [JOIN_TIMEOUT] = {.name = "join_timeout", .variable = "WEFT_JOIN_TIMEOUT", .fallback = "30s", .kind = DURATION,
                      .min = WEFT_MS, .max = LONG_TIME, .in_hostfile = true,
                      .help = "how long a node waits for the others to come; more by itself from 82 nodes on"},
    [LIVENESS] = {.name = "liveness", .variable = "WEFT_LIVENESS", .fallback = "2s", .kind = DURATION,
                  .min = 100 * WEFT_MS, .max = 3600 * WEFT_SECOND, .in_hostfile = true,
                  .help = "a node on another host that is silent for so long is dead"},
    /* Longer than a cable is out that was knocked, or than a port takes to come up; shorter than the deadline of a wait, so that
     * what waits for a link sees what became of it. Nothing is lost by trying: that a peer is dead comes from elsewhere. */
    [RECONNECT] = {.name = "reconnect", .variable = "WEFT_RECONNECT", .fallback = "10s", .kind = DURATION, .max = LONG_TIME,
                   .in_hostfile = true,
                   .help = "how long a broken RDMA link to a living node is tried to be built anew; 0: not at all"},
    [SPIN] = {.name = "spin", .variable = "WEFT_SPIN", .fallback = "20us", .kind = DURATION, .max = WEFT_SECOND,
              .in_hostfile = true, .help = "how long a wait spins before it sleeps; 0: never"},
    [SSH] = {.name = "ssh", .variable = "WEFT_SSH", .fallback = "ssh", .kind = PATH,
             .help = "what `weft run` calls to start nodes on other machines"},
    [LOG] = {.name = "log", .variable = "WEFT_LOG", .fallback = "warn", .kind = CHOICE,
             .choices = "error|warn|info|debug", .in_hostfile = true, .help = "how much is said on stderr"},
};

/* What was found for a setting, still as text. */
struct found {
    const char *text;
    enum cluster_source source;
    char own[32];   /* an option's number as text */
    char from[160]; /* "environment WEFT_POOL" */
};

bool cluster_setting_in_hostfile(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (table[i].in_hostfile && strcmp(table[i].name, name) == 0)
            return true;
    return false;
}

/* --- where the values come from --- */

static void take(struct found *f, const char *text, enum cluster_source source, const char *where,
                 const char *what)
{
    f->text = text;
    f->source = source;
    snprintf(f->from, sizeof f->from, "%s%s%s", where, what ? " " : "", what ? what : "");
}

static void take_option(struct found *f, const char *text)
{
    take(f, text, CLUSTER_OPTION, "option", NULL);
}

static void take_number(struct found *f, long long value, const char *unit)
{
    snprintf(f->own, sizeof f->own, "%lld%s", value, unit);
    take_option(f, f->own);
}

static void from_config(struct found *found, const weft_config *c)
{
    if (c->size) {
        take_number(&found[RANK], c->rank, "");
        take_number(&found[SIZE], c->size, "");
    }
    if (c->coord)
        take_option(&found[COORD], c->coord);
    if (c->hostfile)
        take_option(&found[HOSTFILE], c->hostfile);
    if (c->secret)
        take_option(&found[SECRET_TEXT], c->secret);
    if (c->transport)
        take_option(&found[TRANSPORT], c->transport);
    if (c->pool_bytes) {
        snprintf(found[POOL].own, sizeof found[POOL].own, "%llu", (unsigned long long)c->pool_bytes);
        take_option(&found[POOL], found[POOL].own);
    }
    if (c->pool_flags) {
        take_option(&found[POOL_HUGE], c->pool_flags & WEFT_POOL_HUGE ? "yes" : "no");
        take_option(&found[POOL_LOCK], c->pool_flags & WEFT_POOL_LOCK ? "yes" : "no");
        take_option(&found[POOL_PREFAULT], c->pool_flags & WEFT_POOL_PREFAULT ? "yes" : "no");
    }
    if (c->deadline_ns)
        take_number(&found[DEADLINE], c->deadline_ns, "ns");
    if (c->join_timeout_ns)
        take_number(&found[JOIN_TIMEOUT], c->join_timeout_ns, "ns");
    if (c->reconnect_ns)
        take_number(&found[RECONNECT], c->reconnect_ns < 0 ? 0 : c->reconnect_ns, "ns");
}

static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL; /* an empty variable is how shells say "not set" */
}

/* But an empty secret is what a failed `$(cat FILE)` leaves, and must not open the cluster to all. */
static int empty_secret(const char *who)
{
    return base_fail(-EINVAL, "%s is set but empty: give it a secret of 1 to %u bytes, or unset it", who, SECRET_MAX);
}

int cluster_secret_check(void)
{
    const char *value = getenv(table[SECRET_TEXT].variable);
    return value && !value[0] ? empty_secret(table[SECRET_TEXT].variable) : 0;
}

static void from_environment(struct found *found)
{
    for (int i = 0; i < COUNT; i++) {
        const char *name = table[i].variable, *value = variable(name);
        /* Who says the size in weft's words has not launched through MLX, so MLX's files are not about this
         * cluster. SIZE is asked for again because an option may say it too. */
        bool theirs = i != HOSTFILE || (!found[SIZE].text && !variable(table[SIZE].variable));
        for (int k = 0; !value && theirs && k < 4; k++) {
            name = table[i].also[k];
            value = variable(name);
        }
        if (value && !found[i].text)
            take(&found[i], value, CLUSTER_ENVIRONMENT, "environment", name);
    }
    if (!found[SECRET_TEXT].text && getenv(table[SECRET_TEXT].variable))
        take(&found[SECRET_TEXT], "", CLUSTER_ENVIRONMENT, "environment", table[SECRET_TEXT].variable);
}

static void from_hostfile(struct found *found, const struct cluster_hostfile *h)
{
    for (uint32_t k = 0; k < h->setting_count; k++)
        for (int i = 0; i < COUNT; i++)
            if (!found[i].text && strcmp(h->settings[k].name, table[i].name) == 0)
                take(&found[i], h->settings[k].value, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
    if (h->coord && !found[COORD].text)
        take(&found[COORD], h->coord, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
}

/* --- what they mean --- */

static const char *speaker(enum id id, const struct found *f)
{
    if (f->source == CLUSTER_ENVIRONMENT)
        return f->from + strlen("environment ");
    return table[id].name;
}

static int bad(enum id id, const struct found *f, const char *expected)
{
    bool file = f->source == CLUSTER_HOSTFILE;
    return base_fail(-EINVAL, "%s%s%s='%s': expected %s", file ? f->from : "", file ? ": " : "", speaker(id, f),
                     f->text, expected);
}

static const char *format_duration(int64_t ns, char *buf, size_t len)
{
    static const struct {
        int64_t ns;
        const char *unit;
    } units[] = {{3600 * WEFT_SECOND, "h"}, {WEFT_SECOND, "s"}, {WEFT_MS, "ms"}, {WEFT_US, "us"}, {1, "ns"}};
    size_t i = 0;
    while (i < 4 && (ns < units[i].ns || ns % units[i].ns))
        i++;
    snprintf(buf, len, "%lld%s", (long long)(ns / units[i].ns), ns ? units[i].unit : "");
    return buf;
}

static int read_number(enum id id, const struct found *f, int64_t *out)
{
    const struct setting *s = &table[id];
    char what[96];
    snprintf(what, sizeof what, "a number from %lld to %lld", (long long)s->min, (long long)s->max);
    return base_parse_number(f->text, s->min, s->max, out) ? bad(id, f, what) : 0;
}

static int read_bytes(enum id id, const struct found *f, uint64_t *out)
{
    char low[32], high[32], what[128];
    base_format_bytes((uint64_t)table[id].min, low, sizeof low);
    base_format_bytes((uint64_t)table[id].max, high, sizeof high);
    snprintf(what, sizeof what, "a size from %s to %s, as in 256M or 1.5G", low, high);
    if (base_parse_bytes(f->text, out) || *out < (uint64_t)table[id].min || *out > (uint64_t)table[id].max)
        return bad(id, f, what);
    return 0;
}

int cluster_pool_check(const char *text)
{
    struct found f = {.text = text, .source = CLUSTER_OPTION};
    uint64_t bytes;
    return read_bytes(POOL, &f, &bytes);
}

static int read_duration(enum id id, const struct found *f, int64_t *out)
{
    char low[32], high[32], what[128];
    format_duration(table[id].min, low, sizeof low);
    format_duration(table[id].max, high, sizeof high);
    snprintf(what, sizeof what, "a duration from %s to %s, as in 500ms or 2s", low, high);
    if (base_parse_duration(f->text, out) || *out < table[id].min || *out > table[id].max)
        return bad(id, f, what);
    return 0;
}

static int read_flag(enum id id, const struct found *f, uint32_t flag, uint32_t *out)
{
    static const char *const yes[] = {"1", "yes", "true", "on"}, *const no[] = {"0", "no", "false", "off"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(f->text, yes[i]) == 0) {
            *out |= flag;
            return 0;
        }
        if (strcasecmp(f->text, no[i]) == 0)
            return 0;
    }
    return bad(id, f, "0, 1, yes, no, true, false, on or off");
}

static int read_choice(enum id id, const struct found *f)
{
    char what[96];
    size_t len = strlen(f->text);
    const char *p = table[id].choices;
    for (size_t n; (n = strcspn(p, "|")) > 0; p += n + (p[n] == '|'))
        if (n == len && memcmp(p, f->text, len) == 0)
            return 0;
    snprintf(what, sizeof what, "%s%s", strchr(table[id].choices, '|') ? "one of " : "", table[id].choices);
    return bad(id, f, what);
}

#define FRAME       4096u
#define FRAMES_MOST 4095u /* of a message, and of a queue: what a Thunderbolt port takes */

static int read_lanes(const struct found *f, struct fab_lane *lanes, uint32_t *count)
{
    char what[320], word[32], *end;
    const char *p = f->text;
    uint32_t n = 0;
    snprintf(what, sizeof what, "1 to %u lanes SIZE:MESSAGES, as in 32K:32,128K:16: each message a multiple of 4K, up to %uK; "
                                "1 to %u of them, together at most %u frames of 4K", FAB_LANES_MAX, FRAMES_MOST * 4,
             FAB_LANE_DEPTH, FRAMES_MOST);
    for (bool more = true; more; n++) {
        size_t len = strcspn(p, ","), size = strcspn(p, ":,");
        uint64_t bytes;
        if (n == FAB_LANES_MAX || p[size] != ':' || size == 0 || size >= sizeof word)
            return bad(TB_LANES, f, what);
        memcpy(word, p, size);
        word[size] = '\0';
        const char *digits = p + size + 1;
        unsigned long depth = strtoul(digits, &end, 10);
        if (base_parse_bytes(word, &bytes) || bytes == 0 || bytes % FRAME || bytes > (uint64_t)FRAMES_MOST * FRAME ||
            digits[0] < '0' || digits[0] > '9' || end != p + len || depth < 1 || depth > FAB_LANE_DEPTH ||
            bytes / FRAME * depth > FRAMES_MOST)
            return bad(TB_LANES, f, what);
        lanes[n] = (struct fab_lane){.message = (uint32_t)bytes, .depth = (uint32_t)depth};
        more = p[len] == ',';
        p += len + more;
    }
    *count = n;
    return 0;
}

/* How many, or which. */
static int read_rails(const struct found *f, struct cluster_settings *out)
{
    char what[160];
    long n = strtol(f->text, NULL, 10);
    snprintf(what, sizeof what, "a number from 1 to %u, or as many different devices with commas between, as in mlx5_0,mlx5_1:2",
             FAB_RAILS_MAX);
    if (!f->text[0])
        return 0;
    if (!f->text[strspn(f->text, "0123456789")]) {
        out->rails = (uint32_t)n;
        return n >= 1 && n <= (long)FAB_RAILS_MAX ? 0 : bad(RAILS, f, what);
    }
    const char *p = f->text;
    for (bool more = true; more; out->rails++) {
        size_t len = strcspn(p, ",");
        if (out->rails == FAB_RAILS_MAX || len == 0 || len >= sizeof out->rail_names[0])
            return bad(RAILS, f, what);
        memcpy(out->rail_names[out->rails], p, len);
        for (uint32_t i = 0; i < out->rails; i++)
            if (strcmp(out->rail_names[i], out->rail_names[out->rails]) == 0)
                return bad(RAILS, f, what);
        more = p[len] == ',';
        p += len + more;
    }
    return 0;
}

static int read_address(enum id id, const struct found *f, char *out, size_t len)
{
    if (strlen(f->text) >= len || cluster_address_check(f->text))
        return bad(id, f, "HOST:PORT, [IPV6]:PORT, unix:PATH or unix:@NAME");
    const char *port = strrchr(f->text, ':') + 1;
    if (strncmp(f->text, "unix:", 5) != 0 && !port[strspn(port, "0")])
        return bad(id, f, "a port from 1 to 65535: the one that all nodes call node 0 at");
    snprintf(out, len, "%s", f->text);
    return 0;
}

static int read_secret_file(const struct found *f, struct cluster_settings *out)
{
    const char *path = f->text, *who = speaker(SECRET_FILE, f);
    uint8_t bytes[SECRET_MAX + 2];
    size_t len = 0;
    struct stat st;
    int rc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return base_fail(-errno, "%s='%s': %s", who, path, base_strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        rc = base_fail(-EINVAL, "%s='%s': expected a regular file", who, path);
    } else if (st.st_mode & (S_IRWXG | S_IRWXO)) {
        rc = base_fail(-EACCES, "%s='%s': others may use it (mode %04o): chmod 600 it", who, path,
                       (unsigned)st.st_mode & 07777u);
    }
    while (rc == 0 && len < sizeof bytes) {
        ssize_t n = read(fd, bytes + len, sizeof bytes - len);
        if (n == 0)
            break;
        if (n > 0)
            len += (size_t)n;
        else if (errno != EINTR)
            rc = base_fail(-errno, "%s='%s': %s", who, path, base_strerror(errno));
    }
    close(fd);
    if (rc == 0) {
        if (len > 0 && bytes[len - 1] == '\n')
            len--;
        if (len == 0 || len > SECRET_MAX)
            rc = base_fail(-EINVAL, "%s='%s': expected a secret of 1 to %u bytes", who, path, SECRET_MAX);
    }
    if (rc == 0) {
        out->secret = malloc(len);
        out->secret_len = len;
        if (out->secret)
            memcpy(out->secret, bytes, len);
        else
            rc = base_fail(-ENOMEM, "no memory for the secret");
    }
    sodium_memzero(bytes, sizeof bytes);
    return rc;
}

/* Both may be set; the nearer source counts. */
static int read_secret(const struct found *found, struct cluster_settings *out)
{
    const struct found *text = &found[SECRET_TEXT], *file = &found[SECRET_FILE];
    if (!text->text[0] && text->source != CLUSTER_DEFAULT)
        return empty_secret(speaker(SECRET_TEXT, text));
    if (text->text[0] && file->text[0] && text->source == file->source)
        return base_fail(-EINVAL, "%s and %s are both set: unset one", table[SECRET_TEXT].variable,
                         table[SECRET_FILE].variable);
    if (text->text[0] && text->source >= file->source) {
        size_t len = strlen(text->text);
        if (len > SECRET_MAX)
            return base_fail(-EINVAL, "%s: expected 1 to %u bytes, found %zu", speaker(SECRET_TEXT, text),
                             SECRET_MAX, len);
        out->secret = (uint8_t *)strdup(text->text);
        out->secret_len = len;
        return out->secret ? 0 : base_fail(-ENOMEM, "no memory for the secret");
    }
    return file->text[0] ? read_secret_file(file, out) : 0;
}

/* Node 0 listens on its host's first address when nobody says otherwise. */
static int coord_from_hosts(struct cluster_settings *out, struct found *found)
{
    const struct cluster_host *first = &out->hosts->hosts[0];
    const char *host = first->ip_count ? first->ips[0] : first->ssh;
    if (!host)
        return base_fail(-EINVAL,
                         "hostfile %s: host 0 has neither \"ips\" nor \"ssh\", so nobody knows where node 0 listens: "
                         "add one, or set %s to HOST:PORT",
                         found[HOSTFILE].text, table[COORD].variable);
    bool bare_ipv6 = strchr(host, ':') && host[0] != '[';
    int n = snprintf(out->coord, sizeof out->coord, bare_ipv6 ? "[%s]:%d" : "%s:%d", host, CLUSTER_PORT);
    if (n < 0 || (size_t)n >= sizeof out->coord || cluster_address_check(out->coord))
        return base_fail(-EINVAL, "hostfile %s: host 0: '%s' is not an address: set %s to HOST:PORT",
                         found[HOSTFILE].text, host, table[COORD].variable);
    take(&found[COORD], out->coord, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
    return 0;
}

/* Rank, size and coord depend on each other and on the hostfile. `is_node`: the caller wants to join. */
static int read_place(struct cluster_settings *out, struct found *found, bool is_node)
{
    int64_t rank = 0, size = 1;
    int rc = found[SIZE].text ? read_number(SIZE, &found[SIZE], &size) : 0;
    if (rc == 0 && found[RANK].text)
        rc = read_number(RANK, &found[RANK], &rank);
    if (rc == 0 && found[COORD].text)
        rc = read_address(COORD, &found[COORD], out->coord, sizeof out->coord);
    if (rc)
        return rc;
    if (out->hosts && !found[SIZE].text) {
        size = out->hosts->count;
        snprintf(found[SIZE].own, sizeof found[SIZE].own, "%u", out->hosts->count);
        take(&found[SIZE], found[SIZE].own, CLUSTER_HOSTFILE, "hostfile", found[HOSTFILE].text);
    } else if (out->hosts && size != out->hosts->count) {
        return base_fail(-EINVAL, "%s='%s': expected %u, as many as hostfile %s has nodes", speaker(SIZE, &found[SIZE]),
                         found[SIZE].text, out->hosts->count, found[HOSTFILE].text);
    }
    out->rank = (uint32_t)rank;
    out->size = (uint32_t)size;
    if (!is_node) {
        if (size > 1 && out->hosts && !found[COORD].text && coord_from_hosts(out, found))
            base_error_clear(); /* a node will say it */
        return 0;
    }
    if (!found[SIZE].text && (found[COORD].text || rank > 0))
        return base_fail(-EINVAL,
                         "%s is set, but how many nodes there are is not: set %s or %s, or start the program with "
                         "`weft run`",
                         speaker(rank > 0 ? RANK : COORD, &found[rank > 0 ? RANK : COORD]), table[SIZE].variable,
                         table[HOSTFILE].variable);
    if (rank >= size)
        return bad(RANK, &found[RANK], "a number below the number of nodes (WEFT_SIZE)");
    if (size == 1) {
        out->coord[0] = '\0'; /* alone: nobody to meet */
        return 0;
    }
    if (!found[RANK].text)
        return base_fail(-EINVAL,
                         "the cluster has %lld nodes, but which of them this is is not said: set %s to a number from 0 "
                         "to %lld, or start the program with `weft run`",
                         (long long)size, table[RANK].variable, (long long)size - 1);
    if (found[COORD].text)
        return 0;
    if (out->hosts)
        return coord_from_hosts(out, found);
    return base_fail(-EINVAL,
                     "the cluster has %lld nodes, but where node 0 listens is not said: set %s to HOST:PORT or "
                     "unix:PATH, or start the program with `weft run`",
                     (long long)size, table[COORD].variable);
}

static int resolve(struct cluster_settings *out, struct found *found, const weft_config *config, bool is_node)
{
    memset(out, 0, sizeof *out);
    memset(found, 0, COUNT * sizeof *found);
    if (config)
        from_config(found, config);
    from_environment(found);

    int rc = found[HOSTFILE].text ? cluster_hostfile_read(&out->hosts, found[HOSTFILE].text) : 0;
    if (rc && found[HOSTFILE].source == CLUSTER_ENVIRONMENT)
        rc = base_context(rc, "%s", speaker(HOSTFILE, &found[HOSTFILE]));
    if (rc == 0 && out->hosts)
        from_hostfile(found, out->hosts);
    if (rc == 0)
        rc = read_place(out, found, is_node);
    if (rc == 0 && !found[JOIN_TIMEOUT].text) {
        /* Every pair connects, so joining grows with the square of the nodes. Whole seconds: it is for people. */
        int64_t ns = 30 * WEFT_SECOND + (int64_t)out->size * out->size * 150 * WEFT_US;
        char *own = found[JOIN_TIMEOUT].own;
        snprintf(own, sizeof found[JOIN_TIMEOUT].own, "%llds", (long long)(ns / WEFT_SECOND));
        take(&found[JOIN_TIMEOUT], own, CLUSTER_DEFAULT, "default", NULL);
    }
    for (int i = 0; i < COUNT; i++)
        if (!found[i].text)
            take(&found[i], table[i].fallback, CLUSTER_DEFAULT, "default", NULL);

    if (rc == 0)
        rc = read_secret(found, out);
    if (rc == 0)
        rc = read_bytes(POOL, &found[POOL], &out->pool_bytes);
    static const struct {
        enum id id;
        uint32_t flag;
    } flags[] = {{POOL_HUGE, WEFT_POOL_HUGE}, {POOL_LOCK, WEFT_POOL_LOCK}, {POOL_PREFAULT, WEFT_POOL_PREFAULT}};
    for (int i = 0; rc == 0 && i < 3; i++)
        rc = read_flag(flags[i].id, &found[flags[i].id], flags[i].flag, &out->pool_flags);
    struct {
        enum id id;
        int64_t *out;
    } durations[] = {{DEADLINE, &out->deadline_ns},
                     {SAY_AFTER, &out->say_after_ns},
                     {JOIN_TIMEOUT, &out->join_timeout_ns},
                     {LIVENESS, &out->liveness_ns},
                     {RECONNECT, &out->reconnect_ns},
                     {SPIN, &out->spin_ns}};
    for (int i = 0; rc == 0 && i < 6; i++)
        rc = read_duration(durations[i].id, &found[durations[i].id], durations[i].out);
    if (rc == 0 && found[TRANSPORT].text[0])
        rc = read_choice(TRANSPORT, &found[TRANSPORT]);
    if (rc == 0)
        rc = read_choice(LOG, &found[LOG]);
    if (rc == 0)
        rc = read_lanes(&found[TB_LANES], out->lanes, &out->lane_count);
    if (rc == 0)
        rc = read_choice(TB_CHECK, &found[TB_CHECK]);
    if (rc == 0 && strlen(found[GUARD].text) >= sizeof out->guard)
        rc = bad(GUARD, &found[GUARD], "the command weft, or a shorter path to it");
    if (rc == 0)
        rc = read_rails(&found[RAILS], out);
    if (rc == 0)
        rc = read_bytes(STRIPE, &found[STRIPE], &out->stripe_bytes);
    int64_t gid_index = -1, copy_threads = 0;
    if (rc == 0)
        rc = read_number(GID_INDEX, &found[GID_INDEX], &gid_index);
    if (rc == 0)
        rc = read_number(COPY_THREADS, &found[COPY_THREADS], &copy_threads);
    out->gid_index = (int)gid_index;
    out->bounded = found[DEADLINE].source != CLUSTER_DEFAULT;
    out->copy_threads = (uint32_t)copy_threads;
    if (rc) {
        cluster_settings_clear(out);
        return rc;
    }
    snprintf(out->transport, sizeof out->transport, "%s", found[TRANSPORT].text);
    snprintf(out->device, sizeof out->device, "%s", found[DEVICE].text);
    snprintf(out->guard, sizeof out->guard, "%s", found[GUARD].text);
    out->check_frames = strcmp(found[TB_CHECK].text, "frames") == 0;
    base_log_set(found[LOG].text);
    return 0;
}

int cluster_settings_resolve(struct cluster_settings *out, const weft_config *config)
{
    struct found found[COUNT];
    return resolve(out, found, config, true);
}

void cluster_settings_clear(struct cluster_settings *s)
{
    if (s->secret)
        sodium_memzero(s->secret, s->secret_len);
    free(s->secret);
    cluster_hostfile_free(s->hosts);
    memset(s, 0, sizeof *s);
}

int cluster_settings_list(struct cluster_setting_row *rows, uint32_t max, const weft_config *config)
{
    struct cluster_settings s;
    struct found found[COUNT];
    int rc = resolve(&s, found, config, false);
    if (rc)
        return rc;
    uint32_t n = max < COUNT ? max : COUNT;
    for (uint32_t i = 0; i < n; i++) {
        struct cluster_setting_row *row = &rows[i];
        row->name = table[i].name;
        row->variable = table[i].variable;
        row->default_text = table[i].fallback;
        row->help = table[i].help;
        snprintf(row->value, sizeof row->value, "%s",
                 table[i].kind == SECRET && found[i].text[0] ? "(set)" : found[i].text);
        snprintf(row->from, sizeof row->from, "%s", found[i].from);
    }
    cluster_settings_clear(&s);
    return (int)n;
}
