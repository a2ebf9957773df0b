/* SPDX-License-Identifier: MIT
 *
 * Derives findings from facts. Each check examines facts, which may be missing, and adds findings. A finding that may cause another finding
 * is listed before it. A finding that another finding explains completely is left out.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor_find.h"

static bool has(const struct doctor *d, const char *id)
{
    for (unsigned i = 0; i < d->count; i++)
        if (strcmp(d->out[i].id, id) == 0)
            return true;
    return false;
}

/* --- a fact that cannot be parsed is a finding, since it may hide a problem --- */

/* Parse the list of devices; the caller frees it. Returns NULL if there is no list. An invalid list is a finding. */
static json_t *doctor_read_devices(struct doctor *d)
{
    static const char remedy[] = "Capture it again on that host: `weft devices --json >devices.json`, or `weft doctor --save DIR`";
    char why[300] = "";
    json_error_t error;
    size_t i;
    json_t *device;
    const char *text = doctor_fact(d, DOCTOR_DEVICES);
    json_t *list = text ? json_loads(text, 0, &error) : NULL;
    if (!text)
        return NULL;
    const char *failed = json_string_value(json_object_get(list, "error"));
    if (failed) {
        struct doctor_finding *f = doctor_add(d, "device-error", DEVICE_ERROR, true);
        SAY(f->what, "The RDMA devices of this host cannot be listed");
        SAY(f->seen, "%.700s", failed);
        SAY(f->remedy, "Check that the verbs library and the kernel's drivers have the same version; see `dmesg`");
        json_decref(list);
        return NULL;
    }
    if (!list)
        SAY(why, "not JSON: line %d, column %d: %.200s", error.line, error.column, error.text);
    else if (!json_is_array(list))
        SAY(why, "not a list of devices");
    json_array_foreach (list, i, device)
        if (!why[0] && (!json_is_string(json_object_get(device, "device")) || !json_is_boolean(json_object_get(device, "usable"))))
            SAY(why, "entry %zu of the list is not a device: expected \"device\", a text, and \"usable\", true or false", i + 1);
    if (!why[0])
        return list;
    doctor_unreadable(d, DOCTOR_DEVICES, why, remedy);
    json_decref(list);
    return NULL;
}

static bool good_library(const char *line)
{
    return strncmp(line, "found", 5) == 0 || strncmp(line, "missing", 7) == 0;
}

static bool good_allocation(const char *line)
{
    char name[128], kind[32], code[16], more[2];
    return sscanf(line, "%127s %31s %9s %1s", name, kind, code, more) == 3 && doctor_is_number(code) &&
           (strcmp(kind, "domain") == 0 || strcmp(kind, "queue_pair") == 0);
}

static bool good_limit(const char *line)
{
    char value[64];
    if (doctor_value_of(line, "memlock", value, sizeof value))
        return doctor_is_number(value) || strcmp(value, "unlimited") == 0;
    if (doctor_value_of(line, "pool", value, sizeof value))
        return doctor_is_number(value);
    static const char *const texts[] = {"transport", "provider", "interface", "device", "gpu_rdma"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (doctor_value_of(line, texts[i], value, sizeof value))
            return true;
    return doctor_value_of(line, "privileged", value, sizeof value) && (strcmp(value, "yes") == 0 || strcmp(value, "no") == 0);
}

static bool good_uverbs(const char *line)
{
    const char *blank = strchr(line, ' ');
    return blank && (strcmp(blank + 1, "yes") == 0 || strcmp(blank + 1, "no") == 0);
}

/* Check the facts that have a format of weft's. Report the first invalid line of each fact. */
static void check_lines(struct doctor *d)
{
    static const struct {
        enum doctor_fact which;
        bool (*good)(const char *line);
        const char *expected;
        bool first; /* check only the first line */
    } all[] = {
        {DOCTOR_LIBRARY, good_library, "\"found PATH\" or \"missing: WHY\"", true},
        {DOCTOR_ALLOCATION, good_allocation, "\"DEVICE domain ERRNO\" or \"DEVICE queue_pair ERRNO\", with 0 for success", false},
        {DOCTOR_LIMITS, good_limit,
         "\"memlock: BYTES\" or \"memlock: unlimited\", \"pool: BYTES\", \"transport: NAME\", "
         "\"provider: NAME\", \"interface: NAME\", \"device: NAME\", \"gpu_rdma: no\", \"privileged: yes\" or \"no\"",
         false},
        {DOCTOR_UVERBS, good_uverbs, "\"PATH yes\" or \"PATH no\"", false},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *text = doctor_fact(d, all[i].which);
        char line[512], why[500];
        bool good = true;
        unsigned n = 0;
        while (good && text && !(all[i].first && n) && doctor_next_line(&text, line, sizeof line)) {
            n++;
            good = (!line[0] && !all[i].first) || all[i].good(line);
        }
        if (good)
            continue;
        SAY(why, "line %u, \"%.120s\": expected %s", n, line, all[i].expected);
        doctor_unreadable(d, all[i].which, why, "Correct that line, or capture it again on that host: `weft doctor --save DIR`");
    }
}

/* --- the system --- */
static bool mac_version(const struct doctor *d, int *major, int *minor)
{
    char version[64];
    *minor = 0;
    return doctor_value_of(doctor_fact(d, DOCTOR_SYSTEM), "ProductVersion", version, sizeof version) &&
           sscanf(version, "%d.%d", major, minor) >= 1;
}

static void check_library(struct doctor *d)
{
    const char *text = doctor_fact(d, DOCTOR_LIBRARY);
    int major, minor;
    if (!text || strncmp(text, "missing", 7) != 0)
        return;
    bool known = d->mac && mac_version(d, &major, &minor);
    bool old = known && (major < 26 || (major == 26 && minor < 2));
    struct doctor_finding *f = doctor_add(d, old ? "old-system" : "no-library", old ? OLD_SYSTEM : NO_LIBRARY, true);
    SAY(f->seen, "%.*s", (int)strcspn(text, "\n"), text);
    if (old) {
        SAY(f->what, "macOS %d.%d is too old for RDMA over Thunderbolt", major, minor);
        SAY(f->remedy, "Update macOS to 26.2 or later. Before 26.3, registering too many regions can crash the driver");
    } else if (d->mac) {
        SAY(f->what, "The verbs library (librdma) is missing");
        SAY(f->remedy, "macOS has it from version 26.2 on. Check WEFT_VERBS_LIBRARY if it is set; else update macOS");
    } else {
        SAY(f->what, "The verbs library (libibverbs) is missing");
        SAY(f->remedy, "Install it. Debian, Ubuntu: sudo apt install libibverbs1 ibverbs-providers; Fedora: sudo dnf install "
                       "libibverbs");
    }
}

/* The speed of the fastest port, in Gb/s. Returns -1 if the speed is not known, or if there is no port. */
static int fastest_port(const char *text, char *line, size_t len)
{
    char l[512];
    int most = -1;
    while (text && doctor_next_line(&text, l, sizeof l)) {
        int speed;
        if (strncmp(l, "Speed:", 6) != 0)
            continue;
        const char *digits = l + strcspn(l, "0123456789");
        if (sscanf(digits, "%d", &speed) == 1 && speed > most) {
            most = speed;
            snprintf(line, len, "%s", l);
        }
    }
    return most;
}

static void check_thunderbolt(struct doctor *d)
{
    char line[512];
    int speed = fastest_port(doctor_fact(d, DOCTOR_THUNDERBOLT), line, sizeof line);
    if (!d->mac || speed < 0 || speed > 40)
        return;
    struct doctor_finding *f = doctor_add(d, "thunderbolt-4", THUNDERBOLT_4, true);
    SAY(f->what, "This Mac's ports are Thunderbolt 4 or older, which cannot do RDMA");
    SAY(f->seen, "no port over 40 Gb/s (system_profiler: \"%s\")%s", line,
        doctor_fact(d, DOCTOR_RDMA_CTL) && strstr(doctor_fact(d, DOCTOR_RDMA_CTL), "enabled")
            ? "; rdma_ctl reports \"enabled\", but that does not help"
            : "");
    SAY(f->remedy,
        "No setting changes this: RDMA needs Thunderbolt 5. Nodes on this Mac can still use shared memory, and TCP to other hosts, "
        "which is slower (`weft devices --networks`)");
}

static void check_enabled(struct doctor *d)
{
    const char *text = doctor_fact(d, DOCTOR_RDMA_CTL);
    if (!text || has(d, "thunderbolt-4") || !(strstr(text, "disabled") || strstr(text, "not enabled")))
        return;
    struct doctor_finding *f = doctor_add(d, "not-enabled", NOT_ENABLED, true);
    SAY(f->what, "RDMA is not enabled on this Mac");
    SAY(f->seen, "rdma_ctl status: %.*s", (int)strcspn(text, "\n"), text);
    SAY(f->remedy,
        "On every Mac of the cluster: shut down, hold the power button until Recovery starts, choose Options, open the Terminal, "
        "run `rdma_ctl enable`, and restart");
}

static void check_access(struct doctor *d)
{
    char line[300], closed[400] = "";
    const char *text = doctor_fact(d, DOCTOR_UVERBS);
    while (text && doctor_next_line(&text, line, sizeof line)) {
        char *blank = strchr(line, ' ');
        size_t n = strlen(closed);
        if (blank && strcmp(blank + 1, "no") == 0)
            snprintf(closed + n, sizeof closed - n, "%s%.*s", n ? ", " : "", (int)(blank - line), line);
    }
    if (!closed[0])
        return;
    struct doctor_finding *f = doctor_add(d, "no-access", NO_ACCESS, true);
    SAY(f->what, "There are RDMA devices, but this user may not open them");
    SAY(f->seen, "not readable and writable: %s", closed);
    SAY(f->remedy, "Run sudo chmod 0666 /dev/infiniband/uverbs*. To make it permanent, write the udev rule "
                   "KERNEL==\"uverbs*\", MODE=\"0666\" to /etc/udev/rules.d/99-rdma.rules, as rdma-core does");
}

static void check_presence(struct doctor *d)
{
    if (!d->devices || json_array_size(d->devices) > 0 || has(d, "no-library") || has(d, "old-system") || has(d, "thunderbolt-4") ||
        has(d, "not-enabled") || has(d, "no-access"))
        return;
    struct doctor_finding *f = doctor_add(d, "no-device", NO_DEVICE, true);
    SAY(f->what, "This host has no RDMA device");
    SAY(f->seen, "the verbs library lists no devices");
    if (d->mac)
        SAY(f->remedy,
            "Check that the ports are Thunderbolt 5, and that `rdma_ctl status` reports enabled. If it reports disabled, start macOS "
            "Recovery, run `rdma_ctl enable` there, and restart the Mac");
    else
        SAY(f->remedy,
            "If it has an RDMA adapter, check that its driver is loaded (mlx5_ib, irdma, bnxt_re, ...; `lsmod`, `dmesg`). With plain "
            "Ethernet, use the kernel's software device: sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev "
            "INTERFACE%s",
            has(d, "no-network") ? ""
                                 : ". Without either, nodes on this host can still use shared memory, and TCP to other hosts, which is "
                                   "slower (`weft devices --networks`)");
}

static void check_port(struct doctor *d, const json_t *device)
{
    const char *name = doctor_text_of(device, "device");
    bool thunderbolt = strcmp(doctor_text_of(device, "link"), "Thunderbolt") == 0;
    if (thunderbolt && (has(d, "thunderbolt-4") || has(d, "not-enabled")))
        return;
    struct doctor_finding *f = doctor_add(d, "port-down", PORT_DOWN, true);
    SAY(f->what, "The port of %.60s is down", name);
    SAY(f->seen, "%.60s: state %.20s; %.600s", name, doctor_text_of(device, "state"), doctor_text_of(device, "why_not"));
    if (thunderbolt)
        SAY(f->remedy, "Check that a Thunderbolt 5 cable connects this port to a Mac, and that RDMA is enabled at both ends "
                       "(`rdma_ctl status`)");
    else
        SAY(f->remedy,
            "Check the cable and that the other end is on. Run sudo ip link set %.30s up. An InfiniBand network needs a subnet "
            "manager (opensm)",
            doctor_text_of(device, "interface")[0] ? doctor_text_of(device, "interface") : "INTERFACE");
}

/* Whether an interface or a GID is known to have this address. */
static bool address_taken(const struct doctor *d, const char *address)
{
    size_t n = strlen(address), i, k;
    const json_t *device, *gid;
    for (const char *at = doctor_fact(d, DOCTOR_INTERFACES); at && (at = strstr(at, address)); at += n)
        if (at[n] < '0' || at[n] > '9')
            return true;
    json_array_foreach (d->devices, i, device)
        json_array_foreach (json_object_get(device, "gids"), k, gid)
            if (strncmp(doctor_text_of(gid, "gid"), "::ffff:", 7) == 0 && strcmp(doctor_text_of(gid, "gid") + 7, address) == 0)
                return true;
    return false;
}

/* Propose an address that no other interface has. */
static const char *address_for(struct doctor *d, char out[24])
{
    do
        snprintf(out, 24, "169.254.%u.1", 10 + d->proposed++ % 240);
    while (d->proposed < 240 && address_taken(d, out));
    return out;
}

static void check_gid(struct doctor *d, const json_t *device)
{
    char address[24];
    const char *interface = doctor_text_of(device, "interface"), *why = doctor_text_of(device, "why_not");
    struct doctor_finding *f = doctor_add(d, "no-gid", NO_GID, true);
    if (!interface[0])
        interface = "INTERFACE";
    SAY(f->what, "%.60s has no address (GID) that can be used", doctor_text_of(device, "device"));
    /* The device's text has a remedy of its own. Leave it out, because it might propose the same address for several interfaces. */
    const char *its = strstr(why, ". Give its network interface");
    SAY(f->seen, "%.*s", its && its - why < 700 ? (int)(its - why) : 700, why);
    address_for(d, address);
    if (d->mac)
        SAY(f->remedy,
            "Run sudo ifconfig %.30s inet %s/16 alias, and use an address with another last number at the other end. To make it "
            "permanent, use System Settings, Network",
            interface, address);
    else
        SAY(f->remedy,
            "Run sudo ip address add %s/16 dev %.30s && sudo ip link set %.30s up, and use an address with another last number at "
            "the other end",
            address, interface, interface);
}

static void check_device_error(struct doctor *d, const json_t *device, bool connections)
{
    struct doctor_finding *f =
        connections ? doctor_add(d, "no-connections", NO_CONNECTIONS, true) : doctor_add(d, "device-error", DEVICE_ERROR, true);
    SAY(f->what, connections ? "%.60s has neither reliable nor unreliable connections" : "%.60s cannot be used",
        doctor_text_of(device, "device"));
    SAY(f->seen, "%.700s", doctor_text_of(device, "why_not"));
    SAY(f->remedy, "%s",
        connections ? d->by_libfabric
                          ? "weft uses such a device by libfabric (ofi), not by verbs: `weft devices --networks` lists its providers"
                          : "weft uses such a device only by libfabric (ofi), if that has a provider for it, as for EFA: `weft devices "
                            "--networks` lists what it has"
                    : "Try another version of its driver or firmware; see `dmesg` and `weft devices -v`");
}

/* Whether all objects of a kind are in use. */
static bool exhausted(const json_t *device, const char *limit, int64_t *used, int64_t *total)
{
    const json_t *l = json_object_get(json_object_get(device, "limits"), limit);
    const json_t *u = json_object_get(l, "used");
    *used = json_integer_value(u);
    *total = json_integer_value(json_object_get(l, "total"));
    return json_is_integer(u) && *total > 0 && *used >= *total;
}

/* The errno of allocating an object of the kind `what` on the device. 0: the allocation worked; -1: it was not tried. */
static int allocation(const struct doctor *d, const char *device, const char *what)
{
    char line[256], name[128], kind[32];
    const char *text = doctor_fact(d, DOCTOR_ALLOCATION);
    int code;
    while (text && doctor_next_line(&text, line, sizeof line))
        if (sscanf(line, "%127s %31s %d", name, kind, &code) == 3 && strcmp(name, device) == 0 && strcmp(kind, what) == 0)
            return code;
    return -1;
}

static void check_full(struct doctor *d, const json_t *device, bool domains)
{
    const char *name = doctor_text_of(device, "device");
    bool thunderbolt = strcmp(doctor_text_of(device, "link"), "Thunderbolt") == 0;
    int64_t used, total;
    int code = allocation(d, name, domains ? "domain" : "queue_pair");
    bool full = exhausted(device, domains ? "protection_domains" : "queue_pairs", &used, &total);
    if (code <= 0 && !full)
        return;
    struct doctor_finding *f =
        domains ? doctor_add(d, "no-domains", NO_DOMAINS, true) : doctor_add(d, "no-queue-pairs", NO_QUEUE_PAIRS, true);
    SAY(f->what, "All %s of %.60s are in use", domains ? "protection domains" : "queue pairs", name);
    if (code > 0 && !full)
        SAY(f->seen, "%s was refused with errno %d; the device has %" PRId64, domains ? "a domain" : "a queue pair", code, total);
    else
        SAY(f->seen, "%" PRId64 " of %" PRId64 " are in use", used, total);
    if (domains && thunderbolt)
        SAY(f->remedy,
            "Restart this host: a process that was killed keeps its domain until then. From now on end programs with an interrupt, "
            "never with kill -9");
    else if (thunderbolt)
        SAY(f->remedy, "The device has 10 queue pairs for all programs together: end other programs that use it (`weft run`, mlx.launch, "
                       "exo, ...)");
    else
        SAY(f->remedy, "List the programs that use them: rdma resource show %s", domains ? "pd" : "qp");
}

static void check_devices(struct doctor *d)
{
    size_t i;
    json_t *device;
    json_array_foreach (d->devices, i, device) {
        const char *reason = doctor_text_of(device, "reason");
        if (json_is_true(json_object_get(device, "usable"))) {
            unsigned before = d->count;
            check_full(d, device, true);
            check_full(d, device, false);
            d->usable += d->count == before;
        } else if (strcmp(reason, "port-down") == 0) {
            check_port(d, device);
        } else if (strcmp(reason, "no-gid") == 0) {
            check_gid(d, device);
        } else if (strcmp(reason, "no-access") != 0 || !has(d, "no-access")) {
            check_device_error(d, device, strcmp(reason, "no-connections") == 0);
        }
    }
}

/* Turns findings that do not prevent RDMA into warnings. If one device works, problems of other devices become warnings. If libfabric has a
 * better network than TCP, the lack of devices becomes a warning, too. */
static void weigh(struct doctor *d)
{
    for (unsigned i = 0; i < d->count; i++)
        if (d->usable && d->out[i].rank >= NO_ACCESS && d->out[i].rank <= NO_CONNECTIONS)
            d->out[i].stops = false;
    for (unsigned i = 0; i < d->count; i++)
        if (d->by_libfabric && (d->out[i].rank == NO_DEVICE || d->out[i].rank == NO_CONNECTIONS))
            d->out[i].stops = false;
}

static int by_rank(const void *a, const void *b)
{
    const struct doctor_finding *x = a, *y = b;
    /* Findings that prevent RDMA come first. Findings of the same rank are sorted by their text. */
    if (x->stops != y->stops)
        return x->stops ? -1 : 1;
    return x->rank != y->rank ? x->rank - y->rank : strcmp(x->what, y->what);
}

unsigned doctor_find(const struct doctor_facts *facts, struct doctor_finding out[DOCTOR_FINDINGS], unsigned *usable)
{
    struct doctor d = {.facts = facts, .out = out};
    const char *system = facts->text[DOCTOR_SYSTEM];
    d.mac = system && (strstr(system, "ProductVersion") || strstr(system, "Darwin"));
    d.devices = doctor_read_devices(&d);
    check_lines(&d);
    check_library(&d);
    check_thunderbolt(&d);
    check_enabled(&d);
    check_access(&d);
    doctor_check_networks(&d);
    check_presence(&d);
    check_devices(&d);
    doctor_check_bridge(&d);
    doctor_check_slow_path(&d);
    doctor_check_memlock(&d);
    doctor_check_gpu(&d);
    doctor_check_staged(&d);
    json_decref(d.devices);
    weigh(&d);
    for (unsigned i = 0; i < d.count; i++) {
        doctor_plain(out[i].what);
        doctor_plain(out[i].seen);
        doctor_plain(out[i].remedy);
    }
    qsort(out, d.count, sizeof *out, by_rank);
    *usable = d.usable;
    return d.count;
}
