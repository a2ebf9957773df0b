/* SPDX-License-Identifier: MIT
 *
 * softverbs reboot: does what a restart of a host does to its devices. The host's processes are killed, leaked domains are freed, and
 * deregistration is no longer blocked.
 */
#include "subcommand.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "Usage: softverbs reboot [--fabric F] [--force] HOST\n"
    "\n"
    "Does to the devices of HOST what a restart of a real host does: leaked protection domains are free again, and a\n"
    "device that no longer deregistered memory deregisters memory again. Cables, faults and other hosts stay as they are.\n"
    "Without --force, the command does not reboot a host on which programs run.\n"
    "\n"
    "  --fabric F   name of the fabric (default: SOFTVERBS_FABRIC, or 'default')\n"
    "  --force      kill the programs on the host first (SIGKILL)\n";

static bool lives_here(const struct sf_view *v, uint32_t p, uint32_t host)
{
    return v->fabric->processes[p].host == host && sf_alive(v->fabric, p + 1);
}

static uint32_t process_top(const struct sf_view *v)
{
    uint32_t n = atomic_load_explicit(&v->fabric->process_top, memory_order_acquire);
    return n < SF_PROCESSES ? n : SF_PROCESSES;
}

static int reboot_refuse(const struct sf_view *v, uint32_t host, const char *name)
{
    char list[256] = "";
    size_t n = 0;
    unsigned live = 0;
    for (uint32_t p = 0; p < process_top(v); p++) {
        const struct sf_process *e = &v->fabric->processes[p];
        char command[sizeof e->command];
        if (!lives_here(v, p, host))
            continue;
        live++;
        if (n < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%d (%s)", n ? ", " : "", (int)e->pid,
                                  cli_clean(e->command, sizeof e->command, command, sizeof command));
    }
    if (live == 0)
        return 0;
    return cli_error("reboot", "host '%s' of fabric '%s' is in use by %u process%s: %s. End %s, or use --force, which kills %s", name,
                     v->fabric->name, live, live == 1 ? "" : "es", list, live == 1 ? "it" : "them", live == 1 ? "it" : "them");
}

/* Kills the programs of a host, and waits until they have ended. */
static int clear_host(const struct sf_view *v, uint32_t host)
{
    for (uint32_t p = 0; p < process_top(v); p++) {
        const struct sf_process *e = &v->fabric->processes[p];
        char command[sizeof e->command];
        if (!lives_here(v, p, host) || e->pid <= 1)
            continue;
        fprintf(stderr, "softverbs reboot: killing process %d (%s)\n", (int)e->pid,
                cli_clean(e->command, sizeof e->command, command, sizeof command));
        if (kill(e->pid, SIGKILL) && errno != ESRCH)
            return cli_error("reboot", "cannot kill process %d: %s", (int)e->pid, strerror(errno));
    }
    for (int turn = 0; turn < 5000; turn++) {
        unsigned left = 0;
        for (uint32_t p = 0; p < process_top(v); p++)
            left += lives_here(v, p, host);
        if (left == 0)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return cli_error("reboot", "processes of the host did not end within five seconds of SIGKILL; `softverbs ls` shows them");
}

static void reboot_reset(struct sf_view *v, uint32_t host)
{
    struct sf_fabric *f = v->fabric;
    sf_reap_all(v);
    sf_lock_fabric(v);
    uint32_t pds = atomic_load_explicit(&f->pd_top, memory_order_acquire);
    for (uint32_t i = 0; i < pds && i < SF_PDS; i++) {
        uint32_t device = f->pds[i].device;
        if (atomic_load_explicit(&f->pds[i].owner, memory_order_acquire) == SF_LEAKED && device < SV_DEVICES &&
            f->model.topology.devices[device].host == host)
            sf_free_pd(f, i);
    }
    const struct sv_host_model *h = &f->model.topology.hosts[host];
    for (uint32_t i = h->first_device; i < (uint32_t)h->first_device + h->device_count && i < SV_DEVICES; i++) {
        atomic_store_explicit(&f->devices[i].dereg_blocked, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&f->devices[i].reboots, 1, memory_order_relaxed);
    }
    sf_unlock(v, &f->lock);
}

int cli_reboot(int argc, char **argv)
{
    static const struct option longs[] = {
        {"fabric", required_argument, NULL, 'F'}, {"force", no_argument, NULL, 'f'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *fabric = NULL, *name = NULL;
    bool force = false, started = false;
    int c, status;
    while ((c = cli_option("reboot", argc, argv, false, longs, &started)) != -1) {
        switch (c) {
        case 'F': fabric = optarg; break;
        case 'f': force = true; break;
        case 'h': return cli_help("reboot", help);
        default: return CLI_USAGE;
        }
    }
    if (optind + 1 != argc)
        return cli_usage("reboot", optind < argc ? "unexpected word '%s': one host at a time" : "the host is missing",
                         optind < argc ? argv[optind + 1] : "");
    struct sf_view view;
    uint32_t host;
    if ((status = cli_fabric_name("reboot", fabric, NULL, &name)) || (status = cli_attach("reboot", &view, name, true)))
        return status;
    if ((status = cli_find_host("reboot", &view, argv[optind], &host)))
        goto out;
    status = force ? clear_host(&view, host) : reboot_refuse(&view, host, argv[optind]);
    if (!status)
        reboot_reset(&view, host);
out:
    sf_detach(&view);
    return status;
}
