/* SPDX-License-Identifier: MIT
 *
 * softverbs fault: rules that the library applies while programs run (lib/fault.c), and cables and devices (cable.c).
 */
#include "subcommand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: softverbs fault add KIND [--fabric F] [OPTIONS]     prints the rule's number\n"
    "       softverbs fault list [--fabric F] [--json]\n"
    "       softverbs fault clear [--fabric F] [NUMBER ...]     without a number: all rules\n"
    "       softverbs fault pull|plug|remove|restore [--fabric F] DEVICE\n"
    "       softverbs fault plug [--fabric F] DEVICE DEVICE\n"
    "\n"
    "A rule applies from the moment it is added, also to programs that run already. Kinds of rules for messages:\n"
    "  drop               the message is lost\n"
    "  corrupt            one byte of the message arrives wrong\n"
    "  delay --time T     the message starts T later\n"
    "  withhold --time T  the message arrives, but its completions are delayed by T\n"
    "  reorder --time T   its completions are delayed by up to T, so that those of other queue pairs overtake them\n"
    "  overtake --time T  a read is delayed by T, and the writes behind it overtake it, up to one with IBV_SEND_FENCE\n"
    "Kind of rule for calls:\n"
    "  refuse --verb V --errno E   the call fails, as in --verb create_qp --errno ENOMEM\n"
    "\n"
    "  --device D    only messages that this device sends: HOST:DEVICE or HOST:INTERFACE\n"
    "  --host H      only messages and calls of this host\n"
    "  --qp N        only messages of the queue pair with this number, as log messages print it: 0x010005\n"
    "  --chance P    each matching message or call with this probability: 0.01, 1% or 50ppm\n"
    "  --seed N      seed for the probability: the same seed picks the same messages of the same program each time\n"
    "  --nth N       only the N-th matching message or call (from 1)\n"
    "  --every N     every N-th; with --nth, beginning with the one that --nth names\n"
    "  --count N     at most N. Without --chance, --nth and --every the rule applies to all that match\n"
    "\n"
    "pull and plug unplug and plug the cable of a device (the ports of both ends), remove and restore act on the device. plug\n"
    "with two devices puts a cable between them and removes the cables that they had.\n"
    "\n"
    "  softverbs fault add drop --chance 0.05% --seed 7\n"
    "  softverbs fault add refuse --verb reg_mr --errno ENOMEM --nth 3 --host 1\n"
    "  softverbs fault pull 0:rdma_en2\n";

static const char *const kinds[] = {
    [SF_FAULT_DROP] = "drop",       [SF_FAULT_CORRUPT] = "corrupt", [SF_FAULT_DELAY] = "delay",       [SF_FAULT_WITHHOLD] = "withhold",
    [SF_FAULT_REORDER] = "reorder", [SF_FAULT_REFUSE] = "refuse",   [SF_FAULT_OVERTAKE] = "overtake",
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const char *kind_name(uint32_t kind)
{
    return kind > SF_FAULT_NONE && kind < KINDS ? kinds[kind] : "?";
}

static uint32_t find_kind(const char *word)
{
    for (uint32_t k = 1; k < KINDS; k++)
        if (strcmp(word, kinds[k]) == 0)
            return k;
    return SF_FAULT_NONE;
}

/* The command line of `fault`. */
struct request {
    const char *fabric, *device, *host;
    bool json, seeded, timed, picky; /* picky: there is an option that only `fault add` allows */
    uint64_t qp;
    uint32_t verb;
    struct sf_fault rule;
};

json_t *cli_fault_json(const struct sf_fabric *f, uint32_t entry)
{
    const struct sf_fault *r = &f->faults[entry % SF_FAULTS];
    uint32_t kind = atomic_load_explicit(&r->kind, memory_order_acquire);
    char device[2 * SV_NAME], host[SV_NAME], name[16];
    json_t *j = json_pack("{s:I, s:s}", "id", (json_int_t)r->id, "kind", kind_name(kind));
    if (r->device != SF_NO_DEVICE) {
        cli_device_text(&f->model.topology, r->device, device);
        json_object_set_new(j, "device", json_string(device));
    }
    if (r->host < SV_HOSTS)
        json_object_set_new(j, "host", json_string(cli_clean(f->model.topology.hosts[r->host].name, SV_NAME, host, SV_NAME)));
    if (kind == SF_FAULT_REFUSE) {
        json_object_set_new(j, "verb", json_string(cli_verb_name(r->verb)));
        json_object_set_new(j, "errno", json_string(cli_errno_name(r->error, name)));
    }
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"qp", r->qp_num}, {"nth", r->first}, {"every", r->every}, {"count", r->count}, {"nanoseconds", r->nanoseconds}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].value)
            json_object_set_new(j, numbers[i].name, json_integer((json_int_t)numbers[i].value));
    if (r->chance_ppm)
        json_object_set_new(j, "chance", json_real(r->chance_ppm / 1e6));
    json_object_set_new(j, "seed", json_integer((json_int_t)r->seed));
    json_object_set_new(j, "met", json_integer((json_int_t)atomic_load_explicit(&r->matches, memory_order_relaxed)));
    json_object_set_new(j, "struck", json_integer((json_int_t)atomic_load_explicit(&r->hits, memory_order_relaxed)));
    return j;
}

void cli_fault_text(const struct sf_fabric *f, uint32_t entry, char *text, size_t bytes)
{
    const struct sf_fault *r = &f->faults[entry % SF_FAULTS];
    uint32_t kind = atomic_load_explicit(&r->kind, memory_order_acquire);
    char buffer[2 * SV_NAME];
    FILE *to = fmemopen(text, bytes, "w");
    if (!to) {
        snprintf(text, bytes, "%u %s", r->id, kind_name(kind));
        return;
    }
    fprintf(to, "%u: %s", r->id, kind_name(kind));
    if (kind == SF_FAULT_REFUSE)
        fprintf(to, " --verb %s --errno %s", cli_verb_name(r->verb), cli_errno_name(r->error, buffer));
    if (r->nanoseconds) {
        cli_time_text(r->nanoseconds, buffer, sizeof buffer);
        fprintf(to, " --time %s", buffer);
    }
    if (r->device != SF_NO_DEVICE) {
        cli_device_text(&f->model.topology, r->device, buffer);
        fprintf(to, " --device %s", buffer);
    }
    if (r->host < SV_HOSTS)
        fprintf(to, " --host %s", cli_clean(f->model.topology.hosts[r->host].name, SV_NAME, buffer, SV_NAME));
    if (r->qp_num)
        fprintf(to, " --qp 0x%06x", r->qp_num);
    if (r->chance_ppm)
        fprintf(to, " --chance %gppm --seed %llu", (double)r->chance_ppm, (unsigned long long)r->seed);
    if (r->first)
        fprintf(to, " --nth %llu", (unsigned long long)r->first);
    if (r->every)
        fprintf(to, " --every %llu", (unsigned long long)r->every);
    if (r->count)
        fprintf(to, " --count %llu", (unsigned long long)r->count);
    fprintf(to, "; met %llu, struck %llu", (unsigned long long)atomic_load_explicit(&r->matches, memory_order_relaxed),
            (unsigned long long)atomic_load_explicit(&r->hits, memory_order_relaxed));
    fclose(to);
}

/* Writes a rule into a free entry of the table. The caller holds the fabric's lock. */
static int fault_put(struct sf_fabric *f, const struct sf_fault *rule, bool seeded, uint32_t *id)
{
    struct sf_fault *place = NULL;
    uint32_t kind = rule->kind, alike = 0;
    for (uint32_t i = 0; i < SF_FAULTS; i++) {
        uint32_t k = atomic_load_explicit(&f->faults[i].kind, memory_order_relaxed);
        alike += k == kind;
        if (k == SF_FAULT_NONE && !place)
            place = &f->faults[i];
    }
    if (!place)
        return cli_error("fault", "fabric '%s' has %d rules, the most there can be; `softverbs fault clear NUMBER` removes one", f->name,
                         SF_FAULTS);
    place->device = rule->device;
    place->host = rule->host;
    place->qp_num = rule->qp_num;
    place->chance_ppm = rule->chance_ppm;
    place->verb = rule->verb;
    place->error = rule->error;
    place->first = rule->first;
    place->every = rule->every;
    place->count = rule->count;
    place->nanoseconds = rule->nanoseconds;
    /* rules without a seed get different seeds, which are the same in every run */
    place->seed = seeded ? rule->seed : f->seed + ((uint64_t)kind << 56) + ((uint64_t)alike << 48);
    place->id = *id = atomic_fetch_add_explicit(&f->next_fault, 1, memory_order_relaxed) + 1;
    atomic_store_explicit(&place->matches, 0, memory_order_relaxed);
    atomic_store_explicit(&place->hits, 0, memory_order_relaxed);
    /* release: pairs with the acquire in lib/fault.c; a process that sees the kind sees the rule */
    atomic_store_explicit(&place->kind, kind, memory_order_release);
    atomic_fetch_add_explicit(&f->fault_count, 1, memory_order_relaxed);
    return 0;
}

static int check_rule(const struct request *q, uint32_t kind)
{
    const struct sf_fault *r = &q->rule;
    bool slow = kind == SF_FAULT_DELAY || kind == SF_FAULT_WITHHOLD || kind == SF_FAULT_REORDER || kind == SF_FAULT_OVERTAKE;
    if (slow && !q->timed)
        return cli_usage("fault", "%s: the time is missing: give --time, as in --time 20ms", kinds[kind]);
    if (!slow && q->timed)
        return cli_usage("fault", "%s: --time is for delay, withhold, reorder and overtake", kinds[kind]);
    if (kind == SF_FAULT_REFUSE && (q->verb == SF_VERBS || !r->error))
        return cli_usage("fault", "refuse: %s",
                         q->verb == SF_VERBS ? "the call is missing: give --verb, as in --verb create_qp"
                                             : "the error is missing: give --errno, as in --errno ENOMEM");
    if (kind != SF_FAULT_REFUSE && (q->verb != SF_VERBS || r->error))
        return cli_usage("fault", "%s: --verb and --errno belong to the fault 'refuse'", kinds[kind]);
    if (kind == SF_FAULT_REFUSE && q->qp)
        return cli_usage("fault", "refuse: --qp is for messages; name the caller's --device or --host");
    if (q->seeded && !r->chance_ppm && kind != SF_FAULT_REORDER && kind != SF_FAULT_CORRUPT)
        return cli_usage("fault", "%s: --seed without --chance: nothing is random; leave --seed out, or add --chance", kinds[kind]);
    if (q->device && q->host)
        return cli_usage("fault", "--device '%s' and --host '%s' together: the device belongs to a host already, so leave out --host",
                         q->device, q->host);
    return 0;
}

static int fault_add(struct request *q, struct sf_view *v, int words, char **word)
{
    uint32_t kind = words ? find_kind(word[0]) : SF_FAULT_NONE, id = 0;
    int status;
    if (kind == SF_FAULT_NONE) {
        const char *near = words ? cli_nearest(word[0], &kinds[1], KINDS - 1, sizeof kinds[0]) : NULL;
        return cli_usage("fault", "add: %s%s%s%s%s%s: drop, corrupt, delay, withhold, reorder, overtake or refuse",
                         words ? "unknown kind '" : "the kind is missing", words ? word[0] : "", words ? "'" : "",
                         near ? "; did you mean '" : "", near ? near : "", near ? "'? Kinds are" : "");
    }
    if (words > 1)
        return cli_usage("fault", "add: unexpected word '%s' after '%s'", word[1], word[0]);
    if ((status = check_rule(q, kind)) || (status = cli_attach("fault", v, q->fabric, true)))
        return status;
    if ((q->device && (status = cli_find_device("fault", v, q->device, &q->rule.device))) ||
        (q->host && (status = cli_find_host("fault", v, q->host, &q->rule.host))))
        return status;
    q->rule.kind = kind;
    q->rule.qp_num = (uint32_t)q->qp;
    q->rule.verb = q->verb == SF_VERBS ? 0 : q->verb;
    sf_lock_fabric(v);
    status = fault_put(v->fabric, &q->rule, q->seeded, &id);
    sf_unlock(v, &v->fabric->lock);
    if (status)
        return status;
    printf("%u\n", id);
    return cli_flush("fault");
}

static int fault_list(const struct request *q, struct sf_view *v, int words, char **word)
{
    int status;
    if (words)
        return cli_usage("fault", "list: unexpected word '%s'", word[0]);
    if ((status = cli_attach("fault", v, q->fabric, false)))
        return status;
    json_t *all = q->json ? json_array() : NULL;
    for (uint32_t i = 0; i < SF_FAULTS; i++) {
        char text[256];
        if (atomic_load_explicit(&v->fabric->faults[i].kind, memory_order_acquire) == SF_FAULT_NONE)
            continue;
        if (q->json) {
            json_array_append_new(all, cli_fault_json(v->fabric, i));
        } else {
            cli_fault_text(v->fabric, i, text, sizeof text);
            puts(text);
        }
    }
    return q->json ? cli_json_print("fault", all) : cli_flush("fault");
}

/* Removes rule `id`, or all rules if `id` is 0. Returns how many were removed. The caller holds the fabric's lock. */
static unsigned fault_take(struct sf_fabric *f, uint32_t id)
{
    unsigned gone = 0;
    for (uint32_t i = 0; i < SF_FAULTS; i++) {
        struct sf_fault *r = &f->faults[i];
        if (atomic_load_explicit(&r->kind, memory_order_relaxed) == SF_FAULT_NONE || (id && r->id != id))
            continue;
        atomic_store_explicit(&r->kind, SF_FAULT_NONE, memory_order_release);
        atomic_fetch_sub_explicit(&f->fault_count, 1, memory_order_relaxed);
        gone++;
    }
    return gone;
}

static int fault_clear(const struct request *q, struct sf_view *v, int words, char **word)
{
    uint64_t id;
    int status;
    for (int i = 0; i < words; i++)
        if (cli_parse_number(word[i], 1, UINT32_MAX, &id))
            return cli_usage("fault", "clear '%s': expected a rule's number, as `softverbs fault list` shows it", word[i]);
    if ((status = cli_attach("fault", v, q->fabric, true)))
        return status;
    sf_lock_fabric(v);
    if (!words)
        fault_take(v->fabric, 0);
    for (int i = 0; i < words; i++)
        if (cli_parse_number(word[i], 1, UINT32_MAX, &id) == 0 && fault_take(v->fabric, (uint32_t)id) == 0)
            status = cli_error("fault", "clear %s: fabric '%s' has no such rule; `softverbs fault list` shows those it has", word[i],
                               v->fabric->name);
    sf_unlock(v, &v->fabric->lock);
    return status;
}

enum { SEED = 256, NTH, EVERY, COUNT };
static const struct option longs[] = {
    {"fabric", required_argument, NULL, 'F'},  {"device", required_argument, NULL, 'D'},  {"host", required_argument, NULL, 'H'},
    {"qp", required_argument, NULL, 'q'},      {"chance", required_argument, NULL, 'c'},  {"nth", required_argument, NULL, NTH},
    {"every", required_argument, NULL, EVERY}, {"count", required_argument, NULL, COUNT}, {"time", required_argument, NULL, 't'},
    {"verb", required_argument, NULL, 'v'},    {"errno", required_argument, NULL, 'e'},   {"seed", required_argument, NULL, SEED},
    {"json", no_argument, NULL, 'j'},          {"help", no_argument, NULL, 'h'},          {0}};

static int fault_number(const char *option, uint64_t least, uint64_t most, uint64_t *out)
{
    if (cli_parse_number(optarg, least, most, out) == 0)
        return 0;
    return cli_usage("fault", "%s '%s': expected a whole number from %llu%s", option, optarg, (unsigned long long)least,
                     most == 0xffffff ? " to 0xffffff, as ibv_qp.qp_num has it" : "");
}

static int rule_option(int c, struct request *q)
{
    struct sf_fault *r = &q->rule;
    q->picky = true;
    switch (c) {
    case 'D': q->device = optarg; return 0;
    case 'H': q->host = optarg; return 0;
    case 'q': return fault_number("--qp", 1, 0xffffff, &q->qp);
    case NTH: return fault_number("--nth", 1, INT64_MAX, &r->first);
    case EVERY: return fault_number("--every", 1, INT64_MAX, &r->every);
    case COUNT: return fault_number("--count", 1, INT64_MAX, &r->count);
    case SEED: q->seeded = true; return fault_number("--seed", 0, INT64_MAX, &r->seed);
    case 'c':
        return cli_parse_chance(optarg, &r->chance_ppm) == 0
                   ? 0
                   : cli_usage("fault", "--chance '%s': expected a probability from a millionth to 1, as in 0.01, 1%% or 50ppm", optarg);
    case 't':
        q->timed = true;
        return cli_parse_time(optarg, &r->nanoseconds) == 0 && r->nanoseconds
                   ? 0
                   : cli_usage("fault", "--time '%s': expected a time with its unit, as in 500us, 20ms or 1.5s", optarg);
    case 'e':
        return cli_parse_errno(optarg, &r->error) == 0
                   ? 0
                   : cli_usage("fault", "--errno '%s': expected a name or number, as in ENOMEM or 12", optarg);
    default:
        return cli_parse_verb(optarg, &q->verb) == 0
                   ? 0
                   : cli_usage("fault", "--verb '%s': expected a call that can be refused, one of: %s", optarg, cli_verbs());
    }
}

static int fault_act(struct request *q, struct sf_view *v, int words, char **word)
{
    static const char *const actions[] = {"add", "list", "clear", "pull", "plug", "remove", "restore"};
    const char *action = word[0];
    if (q->picky && strcmp(action, "add") != 0)
        return cli_usage("fault", "%s: its only options are --fabric and, for list, --json", action);
    if (q->json && strcmp(action, "list") != 0)
        return cli_usage("fault", "%s: --json is for list", action);
    if (strcmp(action, "add") == 0)
        return fault_add(q, v, words - 1, word + 1);
    if (strcmp(action, "list") == 0)
        return fault_list(q, v, words - 1, word + 1);
    if (strcmp(action, "clear") == 0)
        return fault_clear(q, v, words - 1, word + 1);
    for (size_t i = 3; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(action, actions[i]) != 0)
            continue;
        bool two = words == 3 && strcmp(action, "plug") == 0;
        if (words != 2 && !two)
            return cli_usage("fault", "%s: %s", action,
                             words < 2 ? "the device is missing: HOST:DEVICE or HOST:INTERFACE" : "one device at a time");
        int status = cli_attach("fault", v, q->fabric, true);
        return status ? status : two ? cli_join(v, (const char *const[]){word[1], word[2]}) : cli_cable(action, v, word[1]);
    }
    if (find_kind(action))
        return cli_usage("fault", "unknown action '%s'; did you mean 'add %s'?", action, action);
    const char *near = cli_nearest(action, actions, sizeof actions / sizeof actions[0], sizeof actions[0]);
    return cli_usage("fault", "unknown action '%s'%s%s%s", action, near ? "; did you mean '" : "", near ? near : "",
                     near ? "'?" : ": add, list, clear, pull, plug, remove or restore");
}

int cli_fault(int argc, char **argv)
{
    struct request q = {.verb = SF_VERBS, .rule = {.device = SF_NO_DEVICE, .host = SF_NO_DEVICE}};
    const char *fabric = NULL;
    bool started = false;
    int c, status;
    while ((c = cli_option("fault", argc, argv, false, longs, &started)) != -1) {
        switch (c) {
        case 'F': fabric = optarg; break;
        case 'j': q.json = true; break;
        case 'h': return cli_help("fault", help);
        case '?': return CLI_USAGE;
        default:
            if ((status = rule_option(c, &q)))
                return status;
        }
    }
    if (optind >= argc)
        return cli_usage("fault", "the action is missing: one of add, list, clear, pull, plug, remove, restore");
    if ((status = cli_fabric_name("fault", fabric, NULL, &q.fabric)))
        return status;
    struct sf_view view = {.fd = -1};
    status = fault_act(&q, &view, argc - optind, argv + optind);
    if (view.fabric)
        sf_detach(&view);
    return status;
}
