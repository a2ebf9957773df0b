/* SPDX-License-Identifier: MIT
 *
 * weft ps, weft kill, weft logs: the jobs of a standing cluster.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/exec.h"
#include "cli/standing.h"

#define LOG_POLL_NS (200 * WEFT_MS)

/* --- weft ps --- */

static const char ps_help[] =
    "Usage: weft ps [--cluster NAME] [--json]\n"
    "\n"
    "Lists the commands that `weft exec` has started from this host, called jobs: all that are running, and the last 64 that\n"
    "were started with --detach and have ended. Each line is a process:\n"
    "\n"
    "  job       the number of the job\n"
    "  node      the number of the node that runs the process\n"
    "  pid       the process ID on the node's host\n"
    "  status    the exit status; -: the process runs; node gone: the node has ended, and the process with it\n"
    "  seconds   the time since the job was started\n"
    "\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "      --json             print the list as JSON\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if the cluster is not up; 2 if the command line is wrong.\n";

static int print_jobs(const json_t *jobs)
{
    static const struct cli_column columns[] = {{"job", true},    {"node", true},    {"pid", true},
                                                {"status", true}, {"seconds", true}, {"command", false}};
    struct cli_table *t = cli_table_new(columns, 6);
    int rc = t ? 0 : -ENOMEM;
    size_t i, k;
    json_t *j, *task;
    json_array_foreach (jobs, i, j) {
        json_array_foreach (json_object_get(j, "tasks"), k, task) {
            char text[5][24];
            const json_t *status = json_object_get(task, "status");
            snprintf(text[0], sizeof text[0], "%lld", (long long)json_integer_value(json_object_get(j, "job")));
            snprintf(text[1], sizeof text[1], "%lld", (long long)json_integer_value(json_object_get(task, "node")));
            snprintf(text[2], sizeof text[2], "%lld", (long long)json_integer_value(json_object_get(task, "pid")));
            snprintf(text[3], sizeof text[3], "-");
            if (json_is_true(json_object_get(task, "node_gone")))
                snprintf(text[3], sizeof text[3], "node gone");
            else if (json_is_integer(status))
                snprintf(text[3], sizeof text[3], "%lld", (long long)json_integer_value(status));
            snprintf(text[4], sizeof text[4], "%lld", (long long)time(NULL) - (long long)json_integer_value(json_object_get(j, "began")));
            const char *cells[] = {text[0], text[1], text[2], text[3], text[4], json_string_value(json_object_get(j, "command"))};
            rc = rc ? rc : cli_table_add(t, cells);
        }
    }
    return cli_table_end("ps", t, rc, "jobs");
}

int cli_ps(int argc, char **argv)
{
    static const struct option longs[] = {
        {"cluster", required_argument, NULL, 'C'}, {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *cluster = NULL;
    struct control_request r = {.head = {.what = CONTROL_STATUS, .flags = CONTROL_WITHOUT_LINKS}};
    bool started = false, as_json = false;
    char *text;
    int c;
    while ((c = cli_option("ps", argc, argv, "h", longs, &started)) != -1) {
        switch (c) {
        case 'C': cluster = optarg; break;
        case 'j': as_json = true; break;
        case 'h': fputs(ps_help, stdout); return cli_flush("ps");
        default: return CLI_USAGE;
        }
    }
    if (optind < argc)
        return cli_usage("ps", "unexpected argument '%s'", argv[optind]);
    int status = standing_text("ps", cluster, &r, &text);
    json_t *o = status ? NULL : json_loads(text, 0, NULL), *jobs = json_object_get(o, "jobs");
    if (!status && !json_is_array(jobs))
        status = cli_error("ps", "the cluster's answer is invalid; run the same version of weft on all hosts");
    else if (!status)
        status = as_json ? cli_json_print("ps", json_incref(jobs)) : print_jobs(jobs);
    json_decref(o);
    free(text);
    return status;
}

/* --- weft kill --- */

static const char kill_help[] =
    "Usage: weft kill [--cluster NAME] [--signal SIGNAL] JOB\n"
    "\n"
    "Ends a job, a command that `weft exec` has started, on all its hosts. JOB is its number, which `weft ps` prints. All\n"
    "processes of the job get SIGTERM; those that have not ended after 5 seconds are killed. `weft kill` does not wait for the\n"
    "end of the job.\n"
    "\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "  -s, --signal SIGNAL    send only this signal: a number, or HUP INT QUIT KILL USR1 USR2 TERM STOP CONT\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if there is no such job; 2 if the command line is wrong.\n";

static int signal_number(const char *text, uint32_t *out)
{
    static const struct {
        const char *name;
        int number;
    } names[] = {{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"KILL", SIGKILL}, {"USR1", SIGUSR1},
                 {"USR2", SIGUSR2}, {"TERM", SIGTERM}, {"STOP", SIGSTOP}, {"CONT", SIGCONT}};
    int64_t n;
    const char *bare = strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(bare, names[i].name) == 0) {
            *out = (uint32_t)names[i].number;
            return 0;
        }
    if (base_parse_number(text, 1, 64, &n))
        return cli_usage("kill", "--signal '%s': expected a number from 1 to 64, or a name such as TERM", text);
    *out = (uint32_t)n;
    return 0;
}

static int job_number(const char *sub, const char *text, uint32_t *out)
{
    int64_t n;
    if (base_parse_number(text, 1, UINT32_MAX, &n))
        return cli_usage(sub, "'%s': expected the number of a job, as `weft ps` shows it", text);
    *out = (uint32_t)n;
    return 0;
}

int cli_kill(int argc, char **argv)
{
    static const struct option longs[] = {
        {"cluster", required_argument, NULL, 'C'}, {"signal", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *cluster = NULL;
    struct control_request r = {.head = {.what = CONTROL_KILL}};
    bool started = false;
    char *text;
    int c, status = 0;
    while ((c = cli_option("kill", argc, argv, "s:h", longs, &started)) != -1) {
        switch (c) {
        case 'C': cluster = optarg; break;
        case 's': status = signal_number(optarg, &r.head.signal); break;
        case 'h': fputs(kill_help, stdout); return cli_flush("kill");
        default: return CLI_USAGE;
        }
        if (status)
            return status;
    }
    if (argc - optind != 1)
        return cli_usage("kill", "expected one job");
    if ((status = job_number("kill", argv[optind], &r.head.job)))
        return status;
    /* standing_text() may send the request again, to the next control node. That does no harm, because only the control node that has the
     * job knows the job's number. */
    status = standing_text("kill", cluster, &r, &text);
    free(text);
    return status;
}

/* --- weft logs --- */

static const char logs_help[] =
    "Usage: weft logs [--cluster NAME] [--follow] [--tag] [JOB]\n"
    "\n"
    "Prints the output of a job that was started with `weft exec --detach`; the newest 1 MiB is kept. Without JOB, prints the\n"
    "messages of the cluster itself on this host; at most the newest 8 MiB are kept, also after the end of the cluster.\n"
    "\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "  -f, --follow           go on and print new output until the job has ended; without JOB, until a signal\n"
    "  -t, --tag              begin each line of a job's output with \"[HOST] \", or \"[HOST:NODE] \" if a host has several\n"
    "                         nodes\n"
    "  -h, --help             print this text\n"
    "\n"
    "Exit status: 0; 1 if there is no such job or cluster, or the job was not detached; 2 if the command line is wrong; 128 + N\n"
    "if signal N ended it.\n";

static int job_logs(const char *cluster, struct control_request *r, enum exec_form form)
{
    struct exec_print print;
    struct control_frame f;
    char *payload = malloc(CONTROL_PIECE_MAX + 1);
    int status = 0, fd = -1;
    if (!payload || exec_print_open(&print, "logs", form)) {
        free(payload);
        return cli_error("logs", "no memory for the buffers of the output" BASE_MEMORY_HINT);
    }
    fd = standing_ask("logs", cluster, r);
    status = fd < 0 ? CLI_FAILED : 0;
    while (!status) {
        int rc = standing_answer(fd, &f, payload, base_deadline(CONTROL_SILENT_NS));
        if (rc || f.type == CONTROL_ERROR)
            status = cli_error("logs", "%s",
                               rc == -ETIMEDOUT ? CONTROL_SILENT
                               : rc             ? "the node of the cluster on this host has ended, and its jobs with it: see `weft logs`"
                                                : payload);
        if (status || f.type == CONTROL_DONE)
            break;
        if (f.type != CONTROL_TEXT) /* a sign of life */
            exec_print_frame(&print, &f, payload);
        exec_print_wait(&print);
        if (print.out.broken || print.err.broken)
            break;
    }
    int lost = exec_print_close(&print);
    if (fd >= 0)
        close(fd);
    free(payload);
    return status ? status : lost;
}

/* Print the rest of a file. */
static void print_rest(FILE *f)
{
    char some[16384];
    clearerr(f); /* the file may have grown after its end was read */
    for (size_t n; (n = fread(some, 1, sizeof some, f)) > 0;)
        fwrite(some, 1, n, stdout);
}

/* Whether the path still names the open file. The launcher begins a new file when the log is full. */
static bool same_file(FILE *f, const char *path)
{
    struct stat open_one, named;
    return stat(path, &named) || fstat(fileno(f), &open_one) || (open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev);
}

static int cluster_logs(const char *cluster, bool follow)
{
    struct standing_place p;
    char old[STANDING_PATH + 2];
    if (standing_find(&p, cluster, false))
        return cli_error("logs", "%s", base_error());
    snprintf(old, sizeof old, "%s.1", p.log);
    FILE *f = fopen(p.log, "re"); /* open the log before `old`, so that no line is missed if the log is renamed in between */
    if (!f)
        return cli_error("logs", "cannot read the cluster's log %s: %s", p.log, base_strerror(errno));
    FILE *before = fopen(old, "re");
    if (before && !same_file(f, old))
        print_rest(before);
    if (before)
        fclose(before);
    print_rest(f);
    int status = cli_flush("logs");
    cli_catch_signals();
    while (follow && !status && !cli_stopped()) {
        base_sleep_ns(LOG_POLL_NS);
        bool same = same_file(f, p.log);
        print_rest(f); /* do this after same_file(), so that all lines of a renamed file are printed */
        FILE *next = same ? NULL : fopen(p.log, "re");
        if (next) {
            fclose(f);
            print_rest(f = next);
        }
        status = cli_flush("logs");
    }
    fclose(f);
    return cli_stopped() ? 128 + cli_stopped() : status; /* the signal may have interrupted a write */
}

int cli_logs(int argc, char **argv)
{
    static const struct option longs[] = {{"cluster", required_argument, NULL, 'C'},
                                          {"follow", no_argument, NULL, 'f'},
                                          {"tag", no_argument, NULL, 't'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    const char *cluster = NULL;
    struct control_request r = {.head = {.what = CONTROL_LOGS}};
    enum exec_form form = EXEC_LINES;
    bool started = false;
    int c, status;
    while ((c = cli_option("logs", argc, argv, "fth", longs, &started)) != -1) {
        switch (c) {
        case 'C': cluster = optarg; break;
        case 'f': r.head.flags |= CONTROL_FOLLOW; break;
        case 't': form = EXEC_TAGGED; break;
        case 'h': fputs(logs_help, stdout); return cli_flush("logs");
        default: return CLI_USAGE;
        }
    }
    if (argc - optind > 1)
        return cli_usage("logs", "unexpected argument '%s'", argv[optind + 1]);
    if (optind == argc)
        return cluster_logs(cluster, r.head.flags & CONTROL_FOLLOW);
    status = job_number("logs", argv[optind], &r.head.job);
    return status ? status : job_logs(cluster, &r, form);
}
