/* SPDX-License-Identifier: MIT
 *
 * softverbs ls: shows fabrics, their devices, and what each process uses.
 *
 * The tables are read while programs run, so the numbers may be from different moments.
 */
#include "subcommand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "Usage: softverbs ls [--fabric F] [--all] [--json]\n"
    "\n"
    "Lists the fabrics: their devices with the state of the port and how many objects of each limited kind are in use, the\n"
    "processes and the objects that each uses, leaked protection domains, and the fault rules.\n"
    "\n"
    "  --fabric F   show this fabric only\n"
    "  --all        also show idle devices on fabrics with many devices\n"
    "  --json       print everything, as JSON\n";

enum { KINDS = 5, FEW = 16 };
static const char *const kinds[KINDS] = {"qp", "pd", "mr", "cq", "srq"};

struct usage {
    uint32_t of[SF_PROCESSES][KINDS];
    uint32_t leaked[SV_DEVICES];
};

static uint32_t ls_top(const _Atomic uint32_t *reached, uint32_t most)
{
    uint32_t n = atomic_load_explicit(reached, memory_order_acquire);
    return n < most ? n : most;
}

static void ls_count(struct usage *u, uint32_t owner, unsigned kind)
{
    if (owner && owner <= SF_PROCESSES)
        u->of[owner - 1][kind]++;
}

static struct usage *ls_look(const struct sf_fabric *f)
{
    struct usage *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
#define EACH(kind, table, reached, most)                            \
    for (uint32_t i = 0, n = ls_top(&f->reached, most); i < n; i++) \
    ls_count(u, atomic_load_explicit(&f->table[i].owner, memory_order_relaxed), kind)
    EACH(0, qps, qp_top, SF_QPS);
    EACH(1, pds, pd_top, SF_PDS);
    EACH(2, mrs, mr_top, SF_MRS);
    EACH(3, cqs, cq_top, SF_CQS);
    EACH(4, srqs, srq_top, SF_SRQS);
#undef EACH
    for (uint32_t i = 0, n = ls_top(&f->pd_top, SF_PDS); i < n; i++)
        if (atomic_load_explicit(&f->pds[i].owner, memory_order_relaxed) == SF_LEAKED && f->pds[i].device < SV_DEVICES)
            u->leaked[f->pds[i].device]++;
    return u;
}

/* The objects of each kind that a device has in use, and the most it may have; 0: the profile has no limit. */
static void ls_used(const struct sf_fabric *f, uint32_t device, uint32_t now[KINDS], uint32_t most[KINDS])
{
    const struct sf_device *d = &f->devices[device];
    const struct sv_profile *p = &f->model.profile;
    const _Atomic uint32_t *const from[KINDS] = {&d->qps, &d->pds, &d->mrs, &d->cqs, &d->srqs};
    const uint32_t limits[KINDS] = {p->real_qp ? p->real_qp : p->max_qp, p->real_pd ? p->real_pd : p->max_pd,
                                    p->real_mr ? p->real_mr : p->max_mr, p->max_cq, p->max_srq};
    for (unsigned k = 0; k < KINDS; k++) {
        now[k] = atomic_load_explicit(from[k], memory_order_relaxed);
        most[k] = limits[k];
    }
}

static const char *ls_port(const struct sf_device *d)
{
    if (atomic_load_explicit(&d->removed, memory_order_relaxed))
        return "removed";
    return atomic_load_explicit(&d->port_up, memory_order_relaxed) ? "active" : "down";
}

static void far_end(const struct sv_topology *t, uint32_t device, char text[2 * SV_NAME])
{
    int32_t cable = t->devices[device].cable;
    if (cable >= 0)
        cli_device_text(t, (uint32_t)cable, text);
    else
        snprintf(text, 2 * SV_NAME, "%s", cable == SV_SWITCH ? "switch" : "no cable");
}

/* Whether entry p belongs to a program, not to a softverbs command. */
static bool ls_shown(const struct sf_view *v, uint32_t p)
{
    return v->fabric->processes[p].host != SF_NO_HOST && sf_alive(v->fabric, p + 1);
}

static json_t *ls_device_json(const struct sf_fabric *f, const struct usage *u, uint32_t i)
{
    const struct sv_topology *t = &f->model.topology;
    const struct sv_device_model *m = &t->devices[i];
    const struct sf_device *d = &f->devices[i];
    char far[2 * SV_NAME], name[SV_NAME], interface[SV_NAME], host[SV_NAME];
    uint32_t now[KINDS], most[KINDS];
    far_end(t, i, far);
    ls_used(f, i, now, most);
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:s}", "host", cli_clean(t->hosts[m->host].name, SV_NAME, host, SV_NAME), "device",
                          cli_clean(m->name, SV_NAME, name, SV_NAME), "interface",
                          cli_clean(m->interface, sizeof m->interface, interface, SV_NAME), "port", ls_port(d), "cable", far);
    for (unsigned k = 0; k < KINDS; k++)
        json_object_set_new(j, kinds[k], json_pack("{s:I, s:I}", "used", (json_int_t)now[k], "limit", (json_int_t)most[k]));
    json_object_set_new(j, "leaked_pd", json_integer(u->leaked[i]));
    const struct {
        const char *name;
        const _Atomic uint64_t *value;
    } counters[] = {{"sent", &d->sent},
                    {"received", &d->received},
                    {"sent_bytes", &d->sent_bytes},
                    {"received_bytes", &d->received_bytes},
                    {"dropped", &d->dropped}};
    for (size_t c = 0; c < sizeof counters / sizeof counters[0]; c++)
        json_object_set_new(j, counters[c].name, json_integer((json_int_t)atomic_load_explicit(counters[c].value, memory_order_relaxed)));
    return j;
}

static json_t *process_json(const struct sf_fabric *f, const struct usage *u, uint32_t p)
{
    const struct sf_process *e = &f->processes[p];
    char command[sizeof e->command], host[SV_NAME];
    json_t *j = json_pack("{s:i, s:s, s:s}", "pid", (int)e->pid, "host",
                          e->host < SV_HOSTS ? cli_clean(f->model.topology.hosts[e->host].name, SV_NAME, host, SV_NAME) : "?", "command",
                          cli_clean(e->command, sizeof e->command, command, sizeof command));
    for (unsigned k = 0; k < KINDS; k++)
        json_object_set_new(j, kinds[k], json_integer(u->of[p][k]));
    return j;
}

static json_t *fabric_json(const struct sf_view *v, const struct usage *u)
{
    const struct sf_fabric *f = v->fabric;
    const struct sv_topology *t = &f->model.topology;
    char name[SV_NAME], profile[SV_NAME], topology[SV_NAME];
    json_t *j =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:i}", "fabric", cli_clean(f->name, SV_NAME, name, SV_NAME), "profile",
                  cli_clean(f->model.profile.name, SV_NAME, profile, SV_NAME), "topology", cli_clean(t->name, SV_NAME, topology, SV_NAME),
                  "seed", (json_int_t)f->seed, "created", (json_int_t)f->created, "hosts", (int)t->host_count);
    json_t *devices = json_array(), *processes = json_array(), *faults = json_array();
    for (uint32_t i = 0; i < t->device_count; i++)
        json_array_append_new(devices, ls_device_json(f, u, i));
    for (uint32_t p = 0, n = ls_top(&f->process_top, SF_PROCESSES); p < n; p++)
        if (ls_shown(v, p))
            json_array_append_new(processes, process_json(f, u, p));
    for (uint32_t i = 0; i < SF_FAULTS; i++)
        if (atomic_load_explicit(&f->faults[i].kind, memory_order_acquire) != SF_FAULT_NONE)
            json_array_append_new(faults, cli_fault_json(f, i));
    json_object_set_new(j, "devices", devices);
    json_object_set_new(j, "processes", processes);
    json_object_set_new(j, "faults", faults);
    return j;
}

static int print_devices(const struct sf_fabric *f, const struct usage *u, bool all)
{
    static const char *const titles[] = {"DEVICE", "PORT", "TO",   ">QP",   ">PD",       ">LEAKED",
                                         ">MR",    ">CQ",  ">SRQ", ">SENT", ">RECEIVED", ">DROPPED"};
    enum { COLUMNS = sizeof titles / sizeof titles[0] };
    const struct sv_topology *t = &f->model.topology;
    struct cli_table *table = cli_table_new(COLUMNS, titles);
    uint32_t hidden = 0;
    for (uint32_t i = 0; i < t->device_count; i++) {
        const struct sf_device *d = &f->devices[i];
        uint32_t now[KINDS], most[KINDS], sum = 0;
        char name[2 * SV_NAME], far[2 * SV_NAME], cell[KINDS][32], leaked[16], sent[24], received[24], dropped[24];
        ls_used(f, i, now, most);
        for (unsigned k = 0; k < KINDS; k++) {
            sum += now[k];
            snprintf(cell[k], sizeof cell[k], k < 3 ? "%u/%u" : "%u", now[k], most[k]);
        }
        if (!all && t->device_count > FEW && sum == 0 && atomic_load(&d->port_up) == t->devices[i].port_up) {
            hidden++;
            continue;
        }
        cli_device_text(t, i, name);
        far_end(t, i, far);
        snprintf(leaked, sizeof leaked, "%u", u->leaked[i]);
        snprintf(sent, sizeof sent, "%llu", (unsigned long long)atomic_load(&d->sent));
        snprintf(received, sizeof received, "%llu", (unsigned long long)atomic_load(&d->received));
        snprintf(dropped, sizeof dropped, "%llu", (unsigned long long)atomic_load(&d->dropped));
        cli_table_add(table, (const char *[COLUMNS]){name, ls_port(d), far, cell[0], cell[1], leaked, cell[2], cell[3], cell[4], sent,
                                                     received, dropped});
    }
    int status = cli_table_print("ls", table, "  ");
    if (hidden)
        printf("  and %u idle devices, which --all shows\n", hidden);
    return status;
}

static int print_processes(const struct sf_view *v, const struct usage *u)
{
    static const char *const titles[] = {">PID", "HOST", "COMMAND", ">QP", ">PD", ">MR", ">CQ", ">SRQ"};
    const struct sf_fabric *f = v->fabric;
    struct cli_table *table = NULL;
    for (uint32_t p = 0, n = ls_top(&f->process_top, SF_PROCESSES); p < n; p++) {
        const struct sf_process *e = &f->processes[p];
        char pid[16], host[SV_NAME], command[sizeof e->command], cell[KINDS][16];
        if (!ls_shown(v, p))
            continue;
        if (!table && !(table = cli_table_new(8, titles)))
            break;
        snprintf(pid, sizeof pid, "%d", (int)e->pid);
        for (unsigned k = 0; k < KINDS; k++)
            snprintf(cell[k], sizeof cell[k], "%u", u->of[p][k]);
        cli_clean(e->command, sizeof e->command, command, sizeof command);
        cli_clean(e->host < SV_HOSTS ? f->model.topology.hosts[e->host].name : "?", SV_NAME, host, SV_NAME);
        cli_table_add(table, (const char *[]){pid, host, command, cell[0], cell[1], cell[2], cell[3], cell[4]});
    }
    return table ? cli_table_print("ls", table, "  ") : 0;
}

static int print_fabric(const struct sf_view *v, const struct usage *u, bool all)
{
    const struct sf_fabric *f = v->fabric;
    const struct sv_topology *t = &f->model.topology;
    char age[32], name[SV_NAME], profile[SV_NAME], topology[SV_NAME];
    uint64_t now = (uint64_t)time(NULL);
    if (now > f->created)
        cli_time_text((now - f->created) * UINT64_C(1000000000), age, sizeof age);
    else
        snprintf(age, sizeof age, "0s"); /* the clock was set back */
    printf("fabric %s: profile %s, %s; %u host%s, %u device%s, seed %llu; %s old\n", cli_clean(f->name, SV_NAME, name, SV_NAME),
           cli_clean(f->model.profile.name, SV_NAME, profile, SV_NAME), cli_clean(t->name, SV_NAME, topology, SV_NAME), t->host_count,
           t->host_count == 1 ? "" : "s", t->device_count, t->device_count == 1 ? "" : "s", (unsigned long long)f->seed, age);
    int status = print_devices(f, u, all);
    if (!status)
        status = print_processes(v, u);
    for (uint32_t i = 0; i < SF_FAULTS && !status; i++)
        if (atomic_load_explicit(&f->faults[i].kind, memory_order_acquire) != SF_FAULT_NONE) {
            char text[256];
            cli_fault_text(f, i, text, sizeof text);
            printf("  fault %s\n", text);
        }
    uint32_t leaked = 0;
    for (uint32_t i = 0; i < t->device_count; i++)
        leaked += u->leaked[i];
    if (leaked)
        printf("  %u domain%s leaked by processes that ended without giving %s back: `softverbs reboot HOST --fabric %s`\n", leaked,
               leaked == 1 ? " was" : "s were", leaked == 1 ? "it" : "them", name);
    return status;
}

/* Shows one fabric: adds it to the list `all_json`, or prints it if that is NULL. */
static int ls_show(const char *name, bool all, json_t *all_json)
{
    struct sf_view view;
    struct sv_why why = {""};
    /* Join the fabric: only a member can free what dead processes own, and only living processes are to be shown. If no entry is free for
     * this command, read without joining. */
    int error = sf_attach(&view, name, true, SF_NO_HOST, &why);
    if (error == -EUSERS)
        error = sf_attach(&view, name, false, 0, &why);
    if (error == -ENOENT)
        return 0; /* the fabric was removed meanwhile */
    if (error)
        return cli_error("ls", "fabric '%s': %s", name, why.text[0] ? why.text : strerror(-error));
    int status = 0;
    struct usage *u = ls_look(view.fabric);
    if (!u)
        status = cli_error("ls", "no memory for the list of fabrics; end other programs");
    else if (all_json)
        json_array_append_new(all_json, fabric_json(&view, u));
    else
        status = print_fabric(&view, u, all);
    free(u);
    sf_detach(&view);
    return status;
}

int cli_ls(int argc, char **argv)
{
    static const struct option longs[] = {{"fabric", required_argument, NULL, 'F'},
                                          {"all", no_argument, NULL, 'a'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    const char *fabric = NULL;
    bool all = false, json = false, started = false;
    int c, status = 0;
    while ((c = cli_option("ls", argc, argv, false, longs, &started)) != -1) {
        switch (c) {
        case 'F': fabric = optarg; break;
        case 'a': all = true; break;
        case 'j': json = true; break;
        case 'h': return cli_help("ls", help);
        default: return CLI_USAGE;
        }
    }
    if (optind < argc)
        return cli_usage("ls", "unexpected word '%s'; a fabric is named with --fabric", argv[optind]);
    char **names;
    size_t count;
    if ((status = cli_fabrics("ls", &names, &count)))
        return status;
    json_t *list = json ? json_array() : NULL;
    unsigned printed = 0;
    for (size_t i = 0; i < count; i++) {
        if (fabric && strcmp(fabric, names[i]) != 0)
            continue;
        if (printed++ && !json)
            putchar('\n');
        if (ls_show(names[i], all, list))
            status = CLI_FAILED;
    }
    cli_fabrics_free(names, count);
    if (fabric && !printed)
        status = cli_error("ls", "there is no fabric '%s'; `softverbs ls` without --fabric lists all", fabric);
    else if (!json && !printed)
        puts("no fabrics; `softverbs up` makes one, and so does `softverbs run`");
    if (json) {
        int printing = cli_json_print("ls", list);
        return status ? status : printing;
    }
    return status ? status : cli_flush("ls");
}
