/* SPDX-License-Identifier: MIT
 *
 * weft exec: runs a command on hosts of a standing cluster, and prints its output.
 */
#include "cli/exec.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/standing.h"
#include "cli/terminal.h"

#define LISTEN_MS 2000
#define LEAVE_MS  100
/* After a second signal this command ends within this time. One second of this time is for the control node. */
#define KILLED_NS (3 * WEFT_SECOND)

static const char help[] =
    "Usage: weft exec [--on HOST,...|all] [OPTIONS] [--] COMMAND [ARGUMENT...]\n"
    "\n"
    "Runs COMMAND on many hosts at once, and prints the output as it arrives. The hosts belong to a standing cluster\n"
    "(`weft up`); no ssh is needed, and no shell runs COMMAND. Output of several hosts is printed in whole lines. This command\n"
    "ends when COMMAND has ended on all hosts. If this command ends first, COMMAND is killed on all hosts.\n"
    "\n"
    "      --on HOST,...      the hosts, as `weft status` prints them, or numbers of nodes; the default is all nodes\n"
    "      --cluster NAME     the name of the cluster; default: the value of WEFT_CLUSTER, or \"default\"\n"
    "      --env NAME=VALUE   set a variable for COMMAND; NAME alone removes it. Can be given several times\n"
    "      --cwd DIR          run COMMAND in this directory; the default is the home directory\n"
    "      --stdin FILE       the standard input of COMMAND on each host; - is this command's own. The default is empty input\n"
    "      --timeout TIME     kill COMMAND after this time: 10 (seconds), 500ms, 2m\n"
    "      --tty              give COMMAND a terminal, which a shell or an editor needs; for one host, from a terminal\n"
    "  -t, --tag              begin each line with \"[HOST] \", or \"[HOST:NODE] \" if a host has several nodes\n"
    "      --json             print what happens as JSON, one object on each line\n"
    "  -d, --detach           print a number and return, while COMMAND runs on: see `weft ps`, `weft logs`, `weft kill`\n"
    "  -h, --help             print this text\n"
    "\n"
    "Ctrl-C, SIGTERM, SIGHUP and SIGQUIT go to COMMAND on all hosts; a second signal kills COMMAND. With --tty all keys go to\n"
    "COMMAND, and a signal to this command kills COMMAND.\n"
    "\n"
    "Exit status: that of the first COMMAND that failed (128 + N if signal N killed it), else 0; 124 after --timeout; 127 if\n"
    "COMMAND is not found, 126 if it cannot be executed; 255 if weft itself failed; 2 for a wrong command line.\n"
    "\n"
    "  weft exec -t -- uptime                      on all hosts\n"
    "  weft exec --on a,b --cwd /data -- ls -l\n"
    "  weft exec --on a --tty -- bash\n";

struct exec_options {
    const char *cluster, *input;
    enum exec_form form;
    bool tty;
    char **changes, *hosts, **host_list;
    uint32_t change_count;
    struct control_request r;
    /* --connected: the small command (front.c) has sent the request, and has become this process. `connected`: the socket, or -1; the
     * frames that the small command has handled are no longer in the socket. `status`: the exit status so far. `written`: how many bytes of
     * the next output were written already */
    int connected, status;
    uint32_t written;
};
struct exec_run {
    int fd, input; /* fd: connection to the control node; input: standard input, or -1 if there is none or its end was sent */
    struct exec_print print;
    /* bytes of input that were sent and that the control node has not taken. At first CONTROL_INPUT_MAX, the limit, so that nothing is sent
     * before the control node is ready */
    size_t outstanding;
    int status;       /* exit status of the first process that failed; 0: no process has failed */
    uint32_t written; /* with --connected: bytes of the next output that were written already */
    bool done;
    int signalled;     /* the first signal; 0: no signal has arrived */
    int64_t end_at;    /* when to end even if the job has not ended; INT64_MAX: never */
    bool tty, raw;     /* raw: the command has started, and the terminal is in raw mode */
    int64_t silent_ns; /* how long this command has waited for the next frame, not counting time in which it was stopped */
    char *payload;
};

/* --- running --- */

static const int caught_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT};
#define ENDING_SIGNALS 4u /* the first four signals of the list end the job; the others are only for --tty */
static int signal_pipe[2] = {-1, -1};
static volatile sig_atomic_t signals_are_read; /* exec_loop() is running */
static volatile sig_atomic_t signal_came;
static volatile sig_atomic_t exec_socket = -1; /* the connection to the control node, while signals are read */

/* If a send blocks because the control node hangs, makes the send end soon. The signal interrupts the send, which begins again with this
 * shorter time-out. */
static void on_second_signal(void)
{
    const struct timeval most = {.tv_sec = KILLED_NS / WEFT_SECOND};
    if (exec_socket >= 0)
        setsockopt(exec_socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

/* Outside exec_loop(), the second signal ends this command, because the command may be waiting until somebody takes its request or its
 * output. */
static void on_exec_signal(int number)
{
    int error = errno;
    uint8_t byte = (uint8_t)number;
    ssize_t n = write(signal_pipe[1], &byte, 1);
    (void)n;
    if (number != SIGWINCH && number != SIGCONT) {
        if (signal_came && !signals_are_read) {
            signal(number, SIG_DFL);
            raise(number);
        }
        if (signal_came)
            on_second_signal();
        signal_came = true;
    }
    errno = error;
}

static int exec_catch(size_t count)
{
    struct sigaction act = {.sa_handler = on_exec_signal, .sa_flags = SA_RESTART}, before;
    int rc = base_pipe(signal_pipe, O_NONBLOCK);
    sigfillset(&act.sa_mask);
    for (size_t i = 0; i < count && !rc; i++)
        if (sigaction(caught_signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(caught_signals[i], &act, NULL);
    signal(SIGPIPE, SIG_IGN);
    return rc ? base_fail(rc, "cannot create the pipe by which this command notices signals: %s" BASE_FILES_HINT, base_strerror(rc)) : 0;
}

static int exec_catch_signals(void)
{
    return exec_catch(ENDING_SIGNALS);
}

static int exec_catch_signals_of_terminal(void)
{
    return exec_catch(sizeof caught_signals / sizeof caught_signals[0]);
}

static void exec_fail(struct exec_run *x, const char *text)
{
    if (x->tty)
        terminal_restore();
    cli_error("exec", "%s", text);
    x->status = x->status ? x->status : JOBS_FAILED;
    x->done = true;
}

/* Send a frame. Errors are ignored: if the control node has ended, the next read reports that. */
static void exec_send(struct exec_run *x, enum control_type type, uint32_t number, const void *payload, size_t bytes)
{
    if (!x->done && control_send(x->fd, type, UINT32_MAX, number, payload, bytes) == -ETIMEDOUT)
        exec_fail(x, CONTROL_SILENT);
}

/* Only with --tty. After a stop, the terminal has the shell's settings and must be set again. */
static void exec_tty_signal(struct exec_run *x, int number)
{
    if (number == SIGWINCH || number == SIGCONT) {
        if (number == SIGCONT && x->raw)
            terminal_raw();
        exec_send(x, CONTROL_WINDOW, terminal_window(), NULL, 0);
        return;
    }
    x->status = 128 + number;
    x->done = true;
}

static void pass_signals(struct exec_run *x)
{
    uint8_t numbers[16];
    ssize_t n = read(signal_pipe[0], numbers, sizeof numbers);
    for (ssize_t i = 0; i < n; i++) {
        if (x->tty) {
            exec_tty_signal(x, numbers[i]);
            continue;
        }
        exec_send(x, CONTROL_SIGNAL, x->signalled ? SIGKILL : numbers[i], NULL, 0);
        if (x->signalled && x->end_at == INT64_MAX)
            x->end_at = base_deadline(KILLED_NS);
        x->signalled = x->signalled ? x->signalled : numbers[i];
    }
}

/* Ends this command although the job has not ended after the second signal, because nobody reads the output, or the control node does not
 * answer. */
static void exec_leave(struct exec_run *x)
{
    if (!exec_print_drop(&x->print)) {
        exec_fail(x, CONTROL_SILENT);
        return;
    }
    x->status = x->status ? x->status : 128 + x->signalled;
    x->done = true;
}

static void send_input(struct exec_run *x)
{
    size_t room = CONTROL_INPUT_MAX - x->outstanding;
    ssize_t n = read(x->input, x->payload, room < CONTROL_PIECE_MAX ? room : CONTROL_PIECE_MAX);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n < 0) {
        cli_error("exec", "cannot read standard input for the command: %s", base_strerror(errno));
        x->status = x->status ? x->status : JOBS_FAILED;
    }
    n = n < 0 ? 0 : n;
    exec_send(x, CONTROL_INPUT, 0, x->payload, (size_t)n);
    x->outstanding += (size_t)n;
    if (n == 0) {
        close(x->input);
        x->input = -1;
    }
}

static void failed(struct exec_run *x, int status)
{
    x->status = x->status ? x->status : status;
}

static void take_frame(struct exec_run *x)
{
    struct control_frame f;
    int rc = standing_answer(x->fd, &f, x->payload, base_deadline(CONTROL_SILENT_NS));
    if (rc) {
        exec_fail(x, rc == -ETIMEDOUT ? CONTROL_SILENT
                                      : "the node of the cluster on this host has ended, and with it the command on all hosts: see `weft "
                                        "logs`, and run the command again");
        return;
    }
    if (x->tty && f.type == CONTROL_ERROR)
        terminal_restore(); /* the error message needs a terminal in its normal mode */
    switch (f.type) {
    case CONTROL_TEXT: return;
    case CONTROL_TAKEN: x->outstanding -= f.number <= x->outstanding ? f.number : x->outstanding; return;
    case CONTROL_DONE: x->done = true; return;
    case CONTROL_STARTED:
        if (!x->tty)
            break;
        x->raw = true;
        if (terminal_raw())
            exec_fail(x, base_error());
        break;
    case CONTROL_ENDED: failed(x, (int)(f.number & 0xff)); break;
    case CONTROL_ERROR:
        failed(x, f.number == ENOENT ? LAUNCH_NOT_FOUND : f.number == EACCES ? LAUNCH_NOT_USABLE : JOBS_FAILED);
        if (f.node == UINT32_MAX) {
            cli_error("exec", "%s", x->payload);
            x->status = JOBS_FAILED;
            x->done = true;
        }
        break;
    default: break;
    }
    uint32_t skip = f.type != CONTROL_OUT ? 0 : x->written < f.bytes ? x->written : f.bytes;
    x->written -= skip;
    f.bytes -= skip;
    exec_print_frame(&x->print, &f, x->payload + skip);
}

/* Count for how long the control node has been silent. The control node sends a sign of life every CONTROL_ALIVE_NS. */
static void exec_listened(struct exec_run *x, bool heard, int64_t ns)
{
    int64_t most = 2 * LISTEN_MS * WEFT_MS; /* count no more time than this: if more has passed, this command was stopped meanwhile */
    x->silent_ns = heard ? 0 : x->silent_ns + (ns < most ? ns : most);
    if (x->silent_ns > CONTROL_SILENT_NS)
        exec_fail(x, CONTROL_SILENT);
}

static void exec_loop(struct exec_run *x)
{
    exec_socket = x->fd;
    signals_are_read = true;
    while (!x->done && !x->print.out.broken && !x->print.err.broken) {
        bool take = !exec_print_full(&x->print);
        bool give = x->input >= 0 && x->outstanding < CONTROL_INPUT_MAX;
        struct pollfd p[5] = {{.fd = take ? x->fd : -1, .events = POLLIN},
                              {.fd = signal_pipe[0], .events = POLLIN},
                              {.fd = give ? x->input : -1, .events = POLLIN},
                              {.fd = relay_waiting(&x->print.out) ? STDOUT_FILENO : -1, .events = POLLOUT},
                              {.fd = relay_waiting(&x->print.err) ? STDERR_FILENO : -1, .events = POLLOUT}};
        int64_t began = base_now_ns();
        if (poll(p, 5, x->end_at == INT64_MAX ? LISTEN_MS : LEAVE_MS) < 0)
            continue;
        exec_listened(x, !take || p[0].revents, base_now_ns() - began);
        if (p[1].revents)
            pass_signals(x);
        if (p[2].revents)
            send_input(x);
        if (p[0].revents)
            take_frame(x);
        exec_print_write(&x->print);
        if (!x->done && base_now_ns() > x->end_at)
            exec_leave(x);
    }
    signals_are_read = false;
    exec_socket = -1;
}

static int exec_detached(const char *cluster, struct control_request *r)
{
    struct control_frame f;
    char *payload = malloc(CONTROL_PIECE_MAX + 1);
    int fd = payload ? standing_ask("exec", cluster, r) : -1, status = 0;
    for (f.type = 0; fd >= 0 && f.type != CONTROL_DONE;) {
        int rc = standing_answer(fd, &f, payload, base_deadline(CONTROL_SILENT_NS));
        if (!rc && f.type != CONTROL_ERROR)
            continue;
        status = JOBS_FAILED;
        if (!rc)
            status = f.number == ENOENT ? LAUNCH_NOT_FOUND : f.number == EACCES ? LAUNCH_NOT_USABLE : JOBS_FAILED;
        cli_error("exec", "%s",
                  rc == -ETIMEDOUT ? CONTROL_SILENT
                  : rc             ? "the node of the cluster on this host has ended: see `weft logs`, and run the command again"
                                   : payload);
        if (rc || f.node == UINT32_MAX)
            break;
    }
    if (fd >= 0 && f.type == CONTROL_DONE)
        printf("%u\n", f.number);
    if (fd >= 0)
        close(fd);
    free(payload);
    return fd < 0 ? JOBS_FAILED : status ? status : cli_flush("exec");
}

static int exec_open_input(struct exec_options *o, struct exec_run *x)
{
    x->input = -1;
    if (!o->input)
        return 0;
    x->input = strcmp(o->input, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(o->input, O_RDONLY | O_CLOEXEC);
    if (x->input < 0) {
        cli_error("exec", "cannot open --stdin %s: %s", o->input, base_strerror(errno));
        return JOBS_FAILED;
    }
    o->r.head.flags |= CONTROL_WITH_INPUT;
    return 0;
}

/* Takes over the connection of the small command. The small command has blocked SIGPIPE, and the signals that this process catches now. */
static int exec_take_over(const struct exec_options *o, struct exec_run *x)
{
    unsigned uid;
    int pid, rc = base_peer_identity(o->connected, &uid, &pid);
    sigset_t held;
    if (rc || uid != (unsigned)geteuid())
        return base_fail(rc ? rc : -EPERM, "--connected is only for weft itself: leave it out");
    if ((rc = exec_catch_signals()))
        return rc;
    sigemptyset(&held);
    sigaddset(&held, SIGPIPE);
    for (size_t i = 0; i < ENDING_SIGNALS; i++)
        sigaddset(&held, caught_signals[i]);
    signals_are_read = true; /* the job runs, so exec_loop() passes on all signals that were blocked */
    sigprocmask(SIG_UNBLOCK, &held, NULL);
    fcntl(o->connected, F_SETFD, FD_CLOEXEC);
    x->status = o->status;
    x->written = o->written;
    return o->connected;
}

/* Until the request is sent, a signal ends this command. The memory for the output is allocated after the request was sent, while the nodes
 * are working. */
static void exec_run_attached(struct exec_run *x, struct exec_options *o)
{
    if (o->connected >= 0 && (x->fd = exec_take_over(o, x)) < 0)
        cli_error("exec", "%s", base_error());
    else if (o->connected < 0)
        x->fd = standing_ask_ready("exec", o->cluster, &o->r, x->tty ? exec_catch_signals_of_terminal : exec_catch_signals);
    if (x->fd < 0) {
        x->status = JOBS_FAILED;
        return;
    }
    x->payload = malloc(CONTROL_PIECE_MAX + 1);
    if (!x->payload || exec_print_open(&x->print, "exec", o->form)) {
        cli_error("exec", "no memory for the command's output" BASE_MEMORY_HINT);
        x->status = JOBS_FAILED;
        return;
    }
    exec_loop(x);
}

static int exec_attached(struct exec_options *o)
{
    struct exec_run x = {.fd = -1, .input = -1, .outstanding = CONTROL_INPUT_MAX, .tty = o->tty, .end_at = INT64_MAX};
    int status = exec_open_input(o, &x);
    if (status)
        return status;
    if (x.tty && terminal_open()) {
        cli_error("exec", "%s", base_error());
        x.status = JOBS_FAILED;
    } else {
        exec_run_attached(&x, o);
    }
    if (x.fd >= 0)
        close(x.fd);
    if (x.print.place) {
        status = exec_print_close(&x.print);
        failed(&x, status);
    }
    terminal_close();
    if (x.input >= 0)
        close(x.input);
    free(x.payload);
    return x.status;
}

/* --- the command line --- */

static int exec_split_hosts(struct exec_options *o)
{
    size_t n = 2;
    for (const char *c = o->hosts; *c; c++)
        n += *c == ',';
    o->host_list = calloc(n, sizeof *o->host_list);
    if (!o->host_list)
        return cli_error("exec", "no memory for the list of hosts (--on)" BASE_MEMORY_HINT);
    n = 0;
    char *save = NULL;
    for (char *word = strtok_r(o->hosts, ",", &save); word; word = strtok_r(NULL, ",", &save))
        o->host_list[n++] = word;
    if (n == 0 || n > WEFT_MAX_NODES)
        return cli_usage("exec", "--on: expected names of hosts, with commas between");
    return 0;
}

static int exec_take_connection(struct exec_options *o, char *value)
{
    int64_t number[3]; /* socket, status, bytes written */
    static const int64_t least[] = {3, 0, 0}, most[] = {INT32_MAX, 255, CONTROL_PIECE_MAX};
    size_t n = 0;
    for (char *save = NULL, *word = strtok_r(value, ":", &save); word; word = strtok_r(NULL, ":", &save), n++)
        if (n == 3 || base_parse_number(word, least[n], most[n], &number[n]))
            return cli_usage("exec", "--connected is only for weft itself: leave it out");
    if (n != 3)
        return cli_usage("exec", "--connected is only for weft itself: leave it out");
    o->connected = (int)number[0];
    o->status = (int)number[1];
    o->written = (uint32_t)number[2];
    return 0;
}

static int exec_take_option(int c, struct exec_options *o)
{
    switch (c) {
    case 'C': o->cluster = optarg; return 0;
    case 'O': o->hosts = optarg; return 0;
    case 'E':
        if (optarg[0] == '=' || !optarg[0])
            return cli_usage("exec", "--env '%s': expected NAME=VALUE, or NAME", optarg);
        o->changes[o->change_count++] = optarg;
        return 0;
    case 'D': o->r.directory = optarg; return 0;
    case 'F': return exec_take_connection(o, optarg);
    case 'I': o->input = optarg; return 0;
    case 'T':
        if (base_parse_duration(optarg, &o->r.head.timeout_ns) || o->r.head.timeout_ns <= 0)
            return cli_usage("exec", "--timeout '%s': expected a time of more than 0, as in 10, 500ms or 2m", optarg);
        return 0;
    case 't': o->form = EXEC_TAGGED; return 0;
    case 'y': o->tty = true; return 0;
    case 'j': o->form = EXEC_JSON; return 0;
    case 'd': o->r.head.flags |= CONTROL_DETACHED; return 0;
    default: return CLI_USAGE;
    }
}

/* For --tty: set TERM for the command, unless --env sets it, and the size of the terminal. */
static int exec_set_terminal(struct exec_options *o, char *term, size_t len)
{
    if (o->input || o->form != EXEC_LINES || o->r.head.flags & CONTROL_DETACHED)
        return cli_usage("exec", "--tty cannot be used with --stdin, --tag, --json or --detach: leave these out");
    if (getenv("TERM") && snprintf(term, len, "TERM=%s", getenv("TERM")) < (int)len) {
        memmove(o->changes + 1, o->changes, o->change_count * sizeof *o->changes);
        o->changes[0] = term;
    }
    o->input = "-";
    o->form = EXEC_AS_IT_IS;
    o->r.head.flags |= CONTROL_TERMINAL;
    o->r.head.window = terminal_window();
    return 0;
}

static int exec_begin(struct exec_options *o, int argc, char **argv)
{
    if (optind >= argc || !argv[optind][0])
        return cli_usage("exec", "the command is missing: give it after the options");
    if (o->connected >= 0 && (o->r.head.flags || o->input))
        return cli_usage("exec", "--connected is only for weft itself: leave it out");
    if (o->r.head.flags & CONTROL_DETACHED && (o->input || o->form != EXEC_LINES))
        return cli_usage("exec", "--detach cannot be used with --stdin, --tag or --json: leave these out");
    char term[256];
    int status = o->tty ? exec_set_terminal(o, term, sizeof term) : 0;
    if (!status && o->hosts)
        status = exec_split_hosts(o);
    if (status)
        return status;
    o->r.arguments = (const char **)(uintptr_t)(argv + optind);
    o->r.changes = (const char **)(uintptr_t)o->changes;
    o->r.hosts = (const char **)(uintptr_t)o->host_list;
    if (o->form == EXEC_LINES && o->host_list && o->host_list[0] && !o->host_list[1] && strcmp(o->host_list[0], "all") != 0)
        o->form = EXEC_AS_IT_IS;
    return o->r.head.flags & CONTROL_DETACHED ? exec_detached(o->cluster, &o->r) : exec_attached(o);
}

int cli_exec(int argc, char **argv)
{
    static const struct option longs[] = {{"on", required_argument, NULL, 'O'},
                                          {"cluster", required_argument, NULL, 'C'},
                                          {"env", required_argument, NULL, 'E'},
                                          {"cwd", required_argument, NULL, 'D'},
                                          {"stdin", required_argument, NULL, 'I'},
                                          {"timeout", required_argument, NULL, 'T'},
                                          {"tag", no_argument, NULL, 't'},
                                          {"tty", no_argument, NULL, 'y'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"detach", no_argument, NULL, 'd'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"connected", required_argument, NULL, 'F'},
                                          {0}};
    struct exec_options o = {.form = EXEC_LINES, .connected = -1, .r = {.head = {.what = CONTROL_EXEC}}};
    bool started = false;
    int c, status = 0;
    if (!(o.changes = calloc((size_t)argc + 2, sizeof *o.changes)))
        return cli_error("exec", "no memory for the changes of the environment (--env)" BASE_MEMORY_HINT);
    while (!status && (c = cli_option("exec", argc, argv, "+tdh", longs, &started)) != -1) {
        if (c == 'h') {
            fputs(help, stdout);
            free(o.changes);
            return cli_flush("exec");
        }
        status = exec_take_option(c, &o);
    }
    if (!status)
        status = exec_begin(&o, argc, argv);
    free(o.changes);
    free(o.host_list);
    return status;
}
