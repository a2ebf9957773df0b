/* SPDX-License-Identifier: MIT
 *
 * Opens the inputs, and finds the ends of their pieces. For that it reads only the few bytes around a piece's nominal end.
 */
#include "map/job.h"
#include "weft/file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* How many bytes are read to find the end of a piece: first CUT_FIRST, then CUT_SECOND, then MAP_STEP_BYTES each time. */
#define CUT_FIRST  512u
#define CUT_SECOND 4096u
_Static_assert(CUT_SECOND < MAP_STEP_BYTES, "the window has room for MAP_STEP_BYTES");

int map_input_look(struct map_input *in)
{
    struct stat st;
    if (stat(in->path, &st))
        return -errno;
    in->device = (uint64_t)st.st_dev;
    in->inode = (uint64_t)st.st_ino;
    return 0;
}

/* Open an input. `keep`: keep the descriptor open. Inputs that cannot be opened again, such as pipes, always stay open. */
static int open_input(const struct map_job *job, struct map_input *in, const char *name, bool keep)
{
    struct stat st;
    bool standard = strcmp(name, "-") == 0;
    in->name = standard ? "standard input" : name;
    in->path = in->path ? in->path : name;
    in->fd = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(in->path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0)
        return base_fail(-errno, "cannot open %s: %s%s", in->name, base_strerror(errno),
                         errno == EMFILE ? "; raise the limit on open files (ulimit -n)"
                         : errno == ENOENT && strchr(name, ':') && !job->apart
                             ? "; for a file of another host, HOST:PATH, give --cluster or --hostfile"
                             : "");
    if (fstat(in->fd, &st))
        return base_fail(-errno, "%s: %s", in->name, base_strerror(errno));
    if (S_ISDIR(st.st_mode))
        return base_fail(-EISDIR, "%s is a directory; name files, as in %s/*", in->name, name);
    off_t at = 0, end = -1;
    if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) {
        at = lseek(in->fd, 0, SEEK_CUR);
        end = S_ISREG(st.st_mode) ? st.st_size : lseek(in->fd, 0, SEEK_END);
    }
    in->stream = end <= 0 || at < 0 || !base_size_is_true(in->fd, (uint64_t)end);
    if (!in->stream) {
        in->start = (uint64_t)at;
        in->size = (uint64_t)(end > at ? end : at);
    }
    in->device = (uint64_t)st.st_dev;
    in->inode = (uint64_t)st.st_ino;
    /* A file that is a single piece is read only once, so the cache is of no use for it. */
    in->cached = job->apart && !standard && !in->stream && S_ISREG(st.st_mode) && !in->start && in->size > job->options->block_bytes &&
                 strlen(in->path) <= WEFT_FILE_PATH_MAX;
    if (!keep && !standard && S_ISREG(st.st_mode)) {
        close(in->fd);
        in->fd = -1;
    }
    return 0;
}

int map_input_fd(const struct map_job *job, uint32_t input, struct map_held *held)
{
    const struct map_input *in = &job->inputs[input];
    struct stat st;
    if (in->fd >= 0)
        return in->fd;
    if (held->fd >= 0 && held->input == input)
        return held->fd;
    map_held_close(held);
    int fd = open(in->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return base_fail(-errno, "cannot open %s again: %s%s", in->name, base_strerror(errno),
                         errno == EMFILE || errno == ENFILE ? "; raise the limit on open files (ulimit -n)" : "");
    if (fstat(fd, &st) || (uint64_t)st.st_dev != in->device || (uint64_t)st.st_ino != in->inode) {
        close(fd);
        return base_fail(-ESTALE, "%s: the file was replaced by another one during the job; run the job again", in->name);
    }
    *held = (struct map_held){input, fd};
    return fd;
}

void map_held_close(struct map_held *held)
{
    if (held->fd >= 0)
        close(held->fd);
    held->fd = -1;
}

/* Reads the launcher's list of the files that other nodes have, and sets the home of each file. */
static int take_homes(struct map_job *job, const char *text)
{
    for (uint32_t i = 0; text && text[i]; i++) {
        if (text[i] == MAP_HOME_HERE)
            continue;
        uint32_t node = (uint8_t)text[i] - (uint32_t)MAP_HOME_FIRST;
        if (i >= job->input_count || node >= job->nodes || !strchr(job->options->files[i], ':'))
            return base_fail(-EPROTO, "the launcher sent an invalid list of the files' nodes; run the same version of weft on all hosts");
        struct map_input *in = &job->inputs[i];
        in->name = job->options->files[i];
        in->path = strchr(in->name, ':') + 1;
        in->home = node;
        in->cached = true;
    }
    return 0;
}

int map_inputs_open(struct map_job *job)
{
    const struct map_options *o = job->options;
    /* Keep as many files open as the limit allows: a running command takes up to eight descriptors, and a slot may keep an input open. */
    struct rlimit limit;
    uint32_t kept = o->file_count < MAP_INPUTS_OPEN ? o->file_count : MAP_INPUTS_OPEN;
    rlim_t work = 9 * (rlim_t)job->slots + 4 * job->nodes + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        if (limit.rlim_cur < work + kept && limit.rlim_cur < limit.rlim_max) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit(RLIMIT_NOFILE, &limit);
        }
        if (limit.rlim_cur < work + kept)
            kept = limit.rlim_cur > work ? (uint32_t)(limit.rlim_cur - work) : 0;
    }
    job->inputs = calloc(o->file_count, sizeof *job->inputs);
    if (!job->inputs)
        return base_fail(-ENOMEM, "no memory for a list of %u files" BASE_MEMORY_HINT, o->file_count);
    for (uint32_t i = 0; i < o->file_count; i++)
        job->inputs[i].fd = -1;
    job->input_count = o->file_count;
    int rc = take_homes(job, o->homes);
    for (uint32_t i = 0; i < o->file_count && !rc; i++)
        if (!job->inputs[i].home) /* inputs of other homes are opened by map_homes_open() */
            rc = open_input(job, &job->inputs[i], o->files[i], i < kept);
    map_inputs_count(job);
    return rc;
}

void map_inputs_count(struct map_job *job)
{
    bool known = true;
    uint64_t total = 0;
    for (uint32_t i = 0; i < job->input_count; i++) {
        known = known && !job->inputs[i].stream;
        total += job->inputs[i].size - job->inputs[i].start;
    }
    job->counts.bytes_total = known ? total : 0;
}

void map_inputs_close(struct map_job *job)
{
    for (uint32_t i = 0; i < job->input_count; i++)
        if (job->inputs[i].fd >= 0)
            close(job->inputs[i].fd);
    free(job->inputs);
    job->inputs = NULL;
    job->input_count = 0;
}

size_t map_cut_find(const struct map_job *job, const uint8_t *bytes, size_t len, uint64_t nominal, size_t *scan)
{
    size_t n = job->separator_len;
    if (n == 0) { /* with --exact, pieces need not end at a separator */
        *scan = len;
        return len >= nominal ? (size_t)nominal : 0;
    }
    size_t from = nominal > *scan ? (size_t)nominal : *scan;
    if (from + n > len)
        return 0;
    const uint8_t *hit = n == 1 ? memchr(bytes + from, job->separator[0], len - from) : memmem(bytes + from, len - from, job->separator, n);
    if (hit)
        return (size_t)(hit - bytes) + n;
    *scan = len - n + 1;
    return 0;
}

int64_t map_read_fd(void *fd, void *to, size_t len, uint64_t offset)
{
    ssize_t n;
    do
        n = pread(*(int *)fd, to, len, (off_t)offset);
    while (n < 0 && errno == EINTR);
    return n < 0 ? base_fail(-errno, "cannot read: %s", base_strerror(errno)) : (int64_t)n;
}

int map_cut_file(const struct map_job *job, const struct map_input *in, map_read_fn read, void *arg, uint64_t start, uint64_t *end)
{
    uint64_t block = job->options->block_bytes;
    size_t n = job->separator_len;
    if (in->size - start <= block) {
        *end = in->size;
        return 0;
    }
    if (n == 0) {
        *end = start + block;
        return 0;
    }
    uint8_t *window = malloc(MAP_STEP_BYTES + n);
    if (!window)
        return base_fail(-ENOMEM, "%s: no memory to look for the end of a piece" BASE_MEMORY_HINT, in->name);
    /* Read little at first, because most lines are short, and the bytes may come from another host. */
    uint64_t at = start + block;
    size_t want = n <= CUT_FIRST / 2 ? CUT_FIRST : MAP_STEP_BYTES + n;
    int rc = 0;
    for (;;) {
        int64_t got = read(arg, window, want, at);
        if (got < 0) {
            rc = base_context((int)got, "%s", in->name);
            break;
        }
        if (got == 0 || at >= in->size) { /* the last piece. If the file was truncated, the read of the piece reports it */
            *end = in->size;
            break;
        }
        size_t scan = 0, found = map_cut_find(job, window, (size_t)got, 0, &scan);
        if (found) {
            *end = at + found < in->size ? at + found : in->size;
            break;
        }
        at += scan ? scan : (size_t)got;
        want = want < CUT_SECOND ? CUT_SECOND : MAP_STEP_BYTES + n;
    }
    free(window);
    return rc;
}
