/* SPDX-License-Identifier: MIT
 *
 * softverbs run: runs a program with this library in place of libibverbs. The program replaces this process, so it has its own signals,
 * exit status and process number.
 */
#include "subcommand.h"

#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUN_FAILED = 125, RUN_CANNOT = 126, RUN_NOT_FOUND = 127 }; /* as env(1) and shells exit */

static const char help[] =
    "Usage: softverbs run [--fabric F] [--host H] [--profile P] [--] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts PROGRAM on host H of a fabric. PROGRAM sees the RDMA devices of that host through libibverbs.so.1 or\n"
    "librdma.dylib, whether it is linked with them or loads them with dlopen. PROGRAM replaces softverbs in this process:\n"
    "it keeps the process ID, receives the signals, and sets the exit status.\n"
    "\n"
    "  --fabric F    name of the fabric (default: SOFTVERBS_FABRIC, or the profile's name if --profile is given,\n"
    "                or 'default'). If there is no such fabric, it is made: a switch with hosts 0 to 7\n"
    "  --host H      name of the host (default: SOFTVERBS_HOST, or the first host)\n"
    "  --profile P   kind of device, if the fabric has to be made (default: generic); `softverbs profile` lists the\n"
    "                kinds. If the fabric exists already, it must have this profile\n"
    "\n"
    "  softverbs run -- ibv_devinfo -v\n"
    "  softverbs run --profile tb5 --host 1 -- python3 my_test.py\n"
    "\n"
    "With SOFTVERBS_LOG=info the library says why it refuses a call. Exit status: that of PROGRAM; 125 if softverbs\n"
    "failed, 126 if PROGRAM cannot be started, 127 if it was not found.\n";

/* Whether `directory` contains this library. `path` gets the real path of the directory. */
static bool is_ours(const char *directory, char path[PATH_MAX])
{
    char library[PATH_MAX + 32], real[PATH_MAX];
    if (!realpath(directory, path))
        return false;
    snprintf(library, sizeof library, "%s/libibverbs.so.1", path);
    return realpath(library, real) != NULL;
}

/* Finds the library: beside this command where it was installed, or in the build tree. */
static int find_library(char directory[PATH_MAX])
{
    static const char *const places[] = {"../" SOFTVERBS_LIBDIR "/softverbs", "../lib/softverbs", "../lib/verbs"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return cli_error("run", "cannot tell where this command is: /proc/self/exe: %s. Is /proc mounted?", strerror(errno));
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    char place[PATH_MAX + 64];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(place, sizeof place, "%s/%s", self, places[i]);
        if (!is_ours(place, directory))
            continue;
        if (strpbrk(directory, ": ")) /* both separate entries of LD_PRELOAD, which has no quoting */
            return cli_error("run",
                             "the library's directory has a space or colon in its name, which LD_PRELOAD does not "
                             "allow: '%s'. Move or install softverbs elsewhere",
                             directory);
        return 0;
    }
    return cli_error("run",
                     "there is no libibverbs.so.1 in %s/%s, nor in %s/%s beside it: reinstall softverbs, or build all "
                     "of it",
                     self, places[0], self, places[2]);
}

/* Finds the runtime library of a sanitizer, which must be a process's first library. This command was built like the library, so the
 * library needs the same runtime. */
static int note_runtime(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    static const char *const runtimes[] = {"libasan.so", "libtsan.so", "libclang_rt.asan", "libclang_rt.tsan"};
    const char *base = strrchr(info->dlpi_name, '/');
    for (size_t i = 0; base && i < sizeof runtimes / sizeof runtimes[0]; i++)
        if (strncmp(base + 1, runtimes[i], strlen(runtimes[i])) == 0) {
            *(const char **)found = info->dlpi_name;
            return 1;
        }
    return 0;
}

/* Puts `first` before the value of the environment variable, unless it is there. */
static int run_prepend(const char *variable, const char *first)
{
    const char *old = getenv(variable);
    size_t n = strlen(first);
    if (!old || !*old)
        return setenv(variable, first, 1);
    if (strncmp(old, first, n) == 0 && (old[n] == 0 || old[n] == ':' || old[n] == ' '))
        return 0; /* the program that started this one was started by `softverbs run`, too */
    char *both = malloc(n + strlen(old) + 2);
    if (!both)
        return -1;
    sprintf(both, "%s:%s", first, old);
    int error = setenv(variable, both, 1);
    free(both);
    return error;
}

/* Turns off a check of gcc's address sanitizer, by which programs refuse to start if another library is preloaded before the sanitizer's.
 * The user's own options come later, and override this. */
static int calm_sanitizer(void)
{
    static const char option[] = "verify_asan_link_order=0";
    const char *old = getenv("ASAN_OPTIONS");
    return old && strstr(old, "verify_asan_link_order") ? 0 : run_prepend("ASAN_OPTIONS", option);
}

/* Makes a relative $SOFTVERBS_DIR absolute, because the program may change its directory. The directory exists. */
static int fix_directory(void)
{
    const char *set = getenv("SOFTVERBS_DIR");
    char path[PATH_MAX];
    if (!set || !*set || *set == '/')
        return 0;
    return realpath(set, path) ? setenv("SOFTVERBS_DIR", path, 1) : -1;
}

static int set_environment(const char *fabric, const char *host)
{
    char directory[PATH_MAX], preload[3 * PATH_MAX];
    int status = find_library(directory);
    if (status)
        return status;
    const char *runtime = NULL;
    dl_iterate_phdr(note_runtime, &runtime);
    snprintf(preload, sizeof preload, "%s%s%s/libibverbs.so.1", runtime ? runtime : "", runtime ? ":" : "", directory);
    if (fix_directory() || calm_sanitizer() || setenv("SOFTVERBS_FABRIC", fabric, 1) || setenv("SOFTVERBS_HOST", host, 1) ||
        run_prepend("LD_LIBRARY_PATH", directory) || run_prepend("LD_PRELOAD", preload))
        return cli_error("run", "cannot set the program's environment: %s", strerror(errno));
    return 0;
}

static int check_profile(const struct sf_fabric *f, const struct sv_profile *wanted, const char *word)
{
    char *is = sv_profile_json(&f->model.profile), *asked = sv_profile_json(wanted);
    int status = 0;
    if (!is || !asked)
        status = cli_error("run", "no memory for the profile; end other programs");
    else if (strcmp(is, asked) != 0)
        status = cli_error("run",
                           "fabric '%s' is there already, with profile '%s'%s, and not with '%s'. `softverbs down "
                           "--fabric %s` removes it; or name another with --fabric",
                           f->name, f->model.profile.name, strcmp(f->model.profile.name, wanted->name) == 0 ? " of other content" : "",
                           word, f->name);
    free(is);
    free(asked);
    return status;
}

/* Attaches the fabric `name`, and makes it if necessary. If several commands do this at the same time, one of them makes it. */
static int run_enter(struct sf_view *view, const char *name, const struct sv_model *model)
{
    struct sv_why why = {""};
    for (int turn = 0; turn < 8; turn++) { /* the fabric may be removed between two steps */
        if (sf_attach(view, name, false, 0, &why) != -ENOENT)
            break;
        int error = sf_create(name, model, CLI_SEED, &why);
        if (error && error != -EEXIST)
            return cli_error("run", "cannot make fabric '%s': %s", name, why.text[0] ? why.text : strerror(-error));
    }
    return view->fabric ? 0 : cli_attach("run", view, name, false);
}

static int run_prepare(const char *fabric, const char *host, const char *profile)
{
    char topology[] = "switch", eight[] = "8", *words[] = {topology, eight};
    const char *name = NULL;
    struct sv_model *model = NULL;
    struct sf_view view = {.fd = -1};
    uint32_t h = 0;
    int status = cli_model("run", profile ? profile : "generic", 2, words, &model);
    if (status)
        return status;
    if ((status = cli_fabric_name("run", fabric, profile ? &model->profile : NULL, &name)) || (status = run_enter(&view, name, model)) ||
        (profile && (status = check_profile(view.fabric, &model->profile, profile))))
        goto out;
    if (!host && (host = getenv("SOFTVERBS_HOST")) && !*host)
        host = NULL;
    if (host && (status = cli_find_host("run", &view, host, &h)))
        goto out;
    char host_name[SV_NAME], fabric_name[SV_NAME];
    snprintf(host_name, sizeof host_name, "%.*s", SV_NAME - 1, view.fabric->model.topology.hosts[h].name);
    snprintf(fabric_name, sizeof fabric_name, "%s", name); /* copied, because `name` may point into the environment or the model */
    status = set_environment(fabric_name, host_name);
out:
    if (view.fabric)
        sf_detach(&view);
    free(model);
    return status;
}

int cli_run(int argc, char **argv)
{
    static const struct option longs[] = {{"fabric", required_argument, NULL, 'F'},
                                          {"host", required_argument, NULL, 'H'},
                                          {"profile", required_argument, NULL, 'P'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    const char *fabric = NULL, *host = NULL, *profile = NULL;
    bool started = false;
    int c;
    while ((c = cli_option("run", argc, argv, true, longs, &started)) != -1) {
        switch (c) {
        case 'F': fabric = optarg; break;
        case 'H': host = optarg; break;
        case 'P': profile = optarg; break;
        case 'h': return cli_help("run", help);
        default: return RUN_FAILED;
        }
    }
    if (optind >= argc) {
        cli_usage("run", "the program is missing: give it after `--`");
        return RUN_FAILED;
    }
    if (run_prepare(fabric, host, profile))
        return RUN_FAILED;
    cli_warn_linked(argv[optind]);
    execvp(argv[optind], argv + optind);
    int error = errno;
    cli_error("run", "cannot start '%s': %s", argv[optind],
              error == ENOENT && !strchr(argv[optind], '/') ? "there is no such program in PATH" : strerror(error));
    return error == ENOENT ? RUN_NOT_FOUND : RUN_CANNOT;
}
