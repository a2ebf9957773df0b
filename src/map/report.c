/* SPDX-License-Identifier: MIT
 *
 * Prints failures as they happen, and the summary at the end of the job.
 */
#include "map/job.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LAST_LINES 10 /* how many lines of a failed command's stderr are printed */

void map_say(struct map_job *job, const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    int n = snprintf(line, sizeof line, "weft map: ");
    int more = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    size_t len = (size_t)n + (more < 0 ? 0 : (size_t)more);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    line[len++] = '\n';
    if (job->rank == 0)
        map_progress_clear(job);
    (void)!write(STDERR_FILENO, line, len);
}

/* The command, or the kernel, as the user gave it, for messages. */
static const char *command_text(const struct map_job *job, char *text, size_t room)
{
    if (job->kernel) {
        snprintf(text, room, "kernel %s", job->options->kernel);
        return text;
    }
    size_t n = 0;
    text[0] = '\0';
    for (char *const *a = job->options->command; *a && n + 1 < room; a++)
        n += (size_t)snprintf(text + n, room - n, "%s%s", a == job->options->command ? "" : " ", *a);
    if (n >= room && room > 4)
        memcpy(text + room - 4, "...", 4);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
    return text;
}

static void print_last_lines(const char *text, size_t len)
{
    while (len && text[len - 1] == '\n')
        len--;
    size_t at = len;
    for (int lines = 0; at; at--)
        if (text[at - 1] == '\n' && ++lines == LAST_LINES)
            break;
    while (at < len) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        fprintf(stderr, "    %.*s\n", n > 500 ? 500 : (int)n, text + at);
        at += n + 1;
    }
}

void map_report_failure(struct map_job *job, const struct map_piece *piece, const struct map_outcome *outcome, const char *error,
                        uint32_t attempts)
{
    char command[160], how[200], tries[48] = "";
    command_text(job, command, sizeof command);
    int code = map_outcome_code(outcome);
    switch ((enum map_kind)outcome->kind) {
    case MAP_EXITED: snprintf(how, sizeof how, "exited %d", code); break;
    case MAP_SIGNALLED: {
        const char *name = NULL;
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
        name = sigabbrev_np(code);
#endif
        if (name)
            snprintf(how, sizeof how, "was killed by SIG%s", name);
        else
            snprintf(how, sizeof how, "was killed by signal %d", code);
        break;
    }
    case MAP_TIMED_OUT: snprintf(how, sizeof how, "timed out after %g s", (double)job->options->timeout_ns / 1e9); break;
    case MAP_NO_RESULT: snprintf(how, sizeof how, "failed"); break;
    case MAP_DEADLY: snprintf(how, sizeof how, "was given up: every node that ran it died"); break;
    default: snprintf(how, sizeof how, "could not be run"); break;
    }
    if (attempts > 1)
        snprintf(tries, sizeof tries, " (%u attempts)", attempts);
    map_say(job, "piece %" PRIu64 ", bytes %" PRIu64 "-%" PRIu64 " of %s: '%s' %s%s", piece->number + 1, piece->offset,
            piece->offset + piece->length - 1, job->inputs[piece->input].name, command, how, tries);
    print_last_lines(error, outcome->error_len);
}

struct sums {
    uint64_t pieces, busy_ns, command_ns;
};

static struct sums node_sums(const struct map_job *job, uint32_t node)
{
    struct sums s = {0};
    for (uint32_t i = 0; i < job->slots; i++) {
        const struct map_line *l = map_line(job, node, i);
        s.pieces += atomic_load_explicit(&l->pieces, memory_order_relaxed);
        s.busy_ns += atomic_load_explicit(&l->busy_ns, memory_order_relaxed);
        s.command_ns += atomic_load_explicit(&l->command_ns, memory_order_relaxed);
    }
    return s;
}

int map_report_stats(struct map_job *job)
{
    const struct map_options *o = job->options;
    const struct map_counts *c = &job->counts;
    if (!o->stats && !o->json && !o->stats_file)
        return 0;
    struct sums all = {0};
    json_t *nodes = json_array();
    for (uint32_t node = 0; node < job->nodes; node++) {
        struct sums s = node_sums(job, node);
        all.pieces += s.pieces;
        all.busy_ns += s.busy_ns;
        all.command_ns += s.command_ns;
        json_array_append_new(nodes, json_pack("{s:i, s:I, s:f}", "node", (int)node, "pieces", (json_int_t)s.pieces, "busy_seconds",
                                               (double)s.busy_ns / 1e9));
    }
    double seconds = (double)(c->end_ns - c->start_ns) / 1e9, start = (double)(c->open_ns - c->start_ns) / 1e9;
    double rate = seconds > 0 ? (double)c->bytes_done / seconds : 0;
    /* The average time from claim to completion of a piece, without the run time of the command. */
    double own_us = all.pieces && !job->kernel ? (double)(all.busy_ns - all.command_ns) / 1e3 / (double)all.pieces : 0;
    uint64_t spilled = atomic_load_explicit(&job->board->spill_bytes, memory_order_relaxed) + job->counts.spilled_apart;
    json_t *whole =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:i, s:i, s:i, s:o}", "pieces", (json_int_t)c->pieces, "done",
                  (json_int_t)c->done, "failed", (json_int_t)c->failed, "retried", (json_int_t)c->retried, "bytes_in",
                  (json_int_t)c->bytes_in, "bytes_out", (json_int_t)job->emit.bytes, "seconds", seconds, "start_seconds", start,
                  "bytes_per_second", rate, "piece_overhead_us", own_us, "spilled_bytes", (json_int_t)spilled, "nodes", (int)job->nodes,
                  "slots", (int)job->slots, "nodes_died", (int)c->nodes_died, "by_node", nodes);
    if (!whole)
        return base_fail(-ENOMEM, "no memory for the summary" BASE_MEMORY_HINT);
    int rc = 0;
    map_progress_clear(job);
    if (o->stats_file && json_dump_file(whole, o->stats_file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)))
        rc = base_fail(-EIO, "cannot write the summary to %s: %s", o->stats_file, base_strerror(errno));
    if (o->json) {
        char *text = json_dumps(whole, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        if (text)
            fprintf(stderr, "%s\n", text);
        free(text);
    } else if (o->stats) {
        char in[32], out[32], a_second[32], spill[32];
        base_format_bytes(c->bytes_in, in, sizeof in);
        base_format_bytes(job->emit.bytes, out, sizeof out);
        base_format_bytes((uint64_t)rate, a_second, sizeof a_second);
        base_format_bytes(spilled, spill, sizeof spill);
        fprintf(stderr,
                "pieces    %" PRIu64 " (%" PRIu64 " failed, %" PRIu64 " retried)\n"
                "input     %s\n"
                "output    %s (%s through the disk)\n"
                "time      %.3f s, including %.1f ms to start %u node%s of %u slot%s\n"
                "rate      %s/s\n",
                c->pieces, c->failed, c->retried, in, out, spill, seconds, start * 1e3, job->nodes, job->nodes == 1 ? "" : "s", job->slots,
                job->slots == 1 ? "" : "s", a_second);
        if (!job->kernel)
            fprintf(stderr, "overhead  %.1f us a piece, besides the run time of its command\n", own_us);
        for (uint32_t node = 0; node < job->nodes; node++) {
            struct sums s = node_sums(job, node);
            fprintf(stderr, "node %-4u %" PRIu64 " pieces, busy %.3f s\n", node, s.pieces, (double)s.busy_ns / 1e9);
        }
    }
    json_decref(whole);
    return rc;
}
