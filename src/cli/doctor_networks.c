/* SPDX-License-Identifier: MIT
 *
 * Finds out why nodes cannot use libfabric at all: it is missing, or a setting names what this host does not have. Finds out why nodes use
 * TCP although this host has a faster network that libfabric drives: this host's libfabric has no provider for the
 * adapter, or a setting leaves the provider unused. If the other host lacks something, the nodes report that when they connect
 * (fabric/ofi/connect.c).
 */
#include <arpa/inet.h>
#include <string.h>

#include "cli/doctor_find.h"

/* Network adapters by their PCI ids. `device` is the beginning of the device id. */
static const struct adapter {
    const char *vendor, *device, *name, *provider, *driver, *from;
} adapters[] = {
    {"0x1d0f", "0xefa", "an EFA adapter", "efa", "efa", "the EFA installer of AWS has one (/opt/amazon/efa)"},
    {"0x17db", "0x05", "a Slingshot adapter", "cxi", "cxi_ss1", "libfabric 1.20 and newer has it if it was built with libcxi"},
    {"0x8086", "0x24f0", "an Omni-Path adapter", "opx", "hfi1", "the libfabric of Omni-Path's software has it"},
    {"0x8086", "0x24f1", "an Omni-Path adapter", "opx", "hfi1", "the libfabric of Omni-Path's software has it"},
    {"0x434e", "0x", "an Omni-Path adapter", "opx", "hfi1", "the libfabric of Omni-Path's software has it"},
};

/* Whether a provider is `name`, alone or followed by another provider, as in "tcp;ofi_rxm". */
static bool is_provider(const char *provider, const char *name)
{
    size_t n = strlen(name);
    return strncmp(provider, name, n) == 0 && (provider[n] == '\0' || provider[n] == ';' || provider[n] == ',');
}

/* The list of providers; the caller frees it. Returns NULL if the list is not known. `failed` becomes the reason why libfabric cannot be
 * used, or "".
 */
static json_t *networks_read(struct doctor *d, char *failed, size_t room)
{
    json_error_t error;
    size_t i;
    json_t *entry;
    const char *text = doctor_fact(d, DOCTOR_NETWORKS);
    json_t *list = text ? json_loads(text, 0, &error) : NULL;
    bool valid = json_is_array(list);
    snprintf(failed, room, "%s", doctor_text_of(list, "error"));
    json_array_foreach (list, i, entry)
        valid = valid && *doctor_text_of(entry, "provider");
    if (!text || valid || *failed)
        return list;
    doctor_unreadable(d, DOCTOR_NETWORKS, list ? "not a list of providers, each with \"provider\", a text" : "not JSON",
                      "Capture it again on that host: `weft devices --networks --json >networks.json`, or `weft doctor --save DIR`");
    json_decref(list);
    return NULL;
}

static const json_t *provider_in(const json_t *list, const char *name)
{
    size_t i;
    const json_t *entry;
    json_array_foreach (list, i, entry)
        if (is_provider(doctor_text_of(entry, "provider"), name))
            return entry;
    return NULL;
}

/* The provider that weft prefers to TCP, and uses by default. Returns NULL if there is none. The best provider is first in the list. */
static const json_t *better_than_tcp(const json_t *list)
{
    const json_t *best = json_array_get(list, 0);
    const char *name = doctor_text_of(best, "provider");
    return best && json_is_true(json_object_get(best, "by_itself")) && !is_provider(name, "net") && !is_provider(name, "tcp") ? best : NULL;
}

static bool has_address(const json_t *list)
{
    size_t i;
    const json_t *entry;
    json_array_foreach (list, i, entry)
        if (json_is_true(json_object_get(entry, "by_itself")) && *doctor_text_of(entry, "address"))
            return true;
    return false;
}

/* Whether one of the providers in WEFT_OFI_PROVIDER is `name`. */
static bool names_provider(const char *setting, const char *name)
{
    for (const char *at = setting; at; at = strchr(at, ','), at += at != NULL)
        if (is_provider(at, name))
            return true;
    return false;
}

/* Whether the list has one of the providers in WEFT_OFI_PROVIDER. There, "tcp" also means "tcp;ofi_rxm". */
static bool has_named(const json_t *list, const char *setting)
{
    char name[64];
    for (size_t n; *setting; setting += n + (setting[n] == ',')) {
        n = strcspn(setting, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, setting);
        if (name[0] && provider_in(list, name))
            return true;
    }
    return false;
}

/* Whether WEFT_OFI_INTERFACE is an interface or an address of the list. All addresses that begin with 127. are this host's. */
static bool has_interface(const json_t *list, const char *setting)
{
    size_t i;
    const json_t *entry;
    uint8_t bytes[16];
    char usual[INET6_ADDRSTRLEN]; /* an IPv6 address may be written in several ways */
    bool found = strncmp(setting, "127.", 4) == 0;
    setting = inet_pton(AF_INET6, setting, bytes) == 1 ? inet_ntop(AF_INET6, bytes, usual, sizeof usual) : setting;
    size_t n = strlen(setting);
    json_array_foreach (list, i, entry) {
        const char *address = doctor_text_of(entry, "address");
        address += *address == '[';
        found = found || strcmp(doctor_text_of(entry, "interface"), setting) == 0 ||
                (strncmp(address, setting, n) == 0 && (address[n] == '\0' || address[n] == ']' || address[n] == '%'));
    }
    return found;
}

/* Report that nodes cannot use libfabric. Returns true if they can. */
static bool check_usable(struct doctor *d, const json_t *list, const char *failed)
{
    char provider[256] = "", interface[256] = "";
    const char *limits = doctor_fact(d, DOCTOR_LIMITS);
    doctor_value_of(limits, "provider", provider, sizeof provider);
    doctor_value_of(limits, "interface", interface, sizeof interface);
    bool unknown = !*failed && provider[0] && !has_named(list, provider);
    bool nowhere = !*failed && !unknown && interface[0] && !has_interface(list, interface);
    if (!*failed && !unknown && !nowhere)
        return true;
    struct doctor_finding *f = doctor_add(d, "no-network", NO_NETWORK, false);
    const char *setting = unknown ? "WEFT_OFI_PROVIDER" : "WEFT_OFI_INTERFACE";
    SAY(f->what, "Nodes on this host cannot reach other hosts, because %s%s", *failed ? "libfabric cannot be used" : "of ",
        *failed ? "" : setting);
    if (*failed)
        SAY(f->seen, "%.390s", failed);
    else
        SAY(f->seen, "%s is %.200s; this host has no such %s", setting, unknown ? provider : interface,
            unknown ? "provider of libfabric" : "network interface or address");
    if (*failed)
        SAY(f->remedy,
            "Install libfabric 1.17 or newer (Debian, Ubuntu: libfabric1; Fedora, Homebrew: libfabric), or set WEFT_OFI_LIBRARY to "
            "its file. Then `weft devices --networks` lists the networks of this host");
    else
        SAY(f->remedy, "Unset %s, or set it to %s that `weft devices --networks` lists when it is not set", setting,
            unknown ? "a provider" : "an interface or an address");
    return false;
}

/* Report a setting that leaves a better provider than TCP unused. Returns true if there is no such setting. */
static bool check_settings(struct doctor *d, const json_t *list)
{
    char provider[256] = "", interface[256] = "", name[64];
    const json_t *best = better_than_tcp(list);
    const char *limits = doctor_fact(d, DOCTOR_LIMITS);
    doctor_value_of(limits, "provider", provider, sizeof provider);
    doctor_value_of(limits, "interface", interface, sizeof interface);
    snprintf(name, sizeof name, "%s", doctor_text_of(best, "provider"));
    name[strcspn(name, ";")] = '\0';
    bool other = best && provider[0] && !names_provider(provider, name);
    bool bound = best && !provider[0] && interface[0] && !*doctor_text_of(best, "address") && has_address(list);
    if (!other && !bound)
        return true;
    struct doctor_finding *f = doctor_add(d, "slow-network", SLOW_PATH, false);
    SAY(f->what, "Nodes that are started here use a network that is slower than libfabric's provider %.40s, because of %s", name,
        other ? "WEFT_OFI_PROVIDER" : "WEFT_OFI_INTERFACE");
    SAY(f->seen, "%s is %.200s; libfabric has the provider %.40s%s", other ? "WEFT_OFI_PROVIDER" : "WEFT_OFI_INTERFACE",
        other ? provider : interface, name, other ? "" : ", which uses no network interface");
    if (other)
        SAY(f->remedy, "Unset WEFT_OFI_PROVIDER: then weft uses %s with nodes that have it, and TCP with the others", name);
    else
        SAY(f->remedy, "Unset WEFT_OFI_INTERFACE. If it is needed for nodes without %s, set WEFT_OFI_PROVIDER=%s,net as well", name, name);
    return false;
}

/* Report an adapter for which libfabric has no provider. */
static void check_adapter(struct doctor *d, const struct adapter *a, const char *line, const json_t *list, const char *failed)
{
    char driver[64], library[400];
    if (provider_in(list, a->provider))
        return;
    doctor_word_of(line, "driver", driver);
    bool no_driver = strcmp(driver, "-") == 0;
    struct doctor_finding *f = doctor_add(d, "slow-network", SLOW_PATH, false);
    SAY(f->what, "This host has %s, but nodes %s, because %s", a->name, *failed ? "do not use it" : "use TCP, which is slower",
        no_driver ? "the adapter has no driver" : "libfabric has no provider for it");
    snprintf(library, sizeof library, *failed ? "%.390s" : "libfabric has no provider %.20s", *failed ? failed : a->provider);
    SAY(f->seen, "%.*s on PCI, %s%.60s; %s", (int)strcspn(line, " "), line, no_driver ? "without a driver" : "driver ",
        no_driver ? "" : driver, library);
    SAY(f->remedy,
        "%s%s%sUse a libfabric that has the provider %s (%s), and set WEFT_OFI_LIBRARY to its file if it is not the system's; `fi_info -p "
        "%s` "
        "says why that provider does not find the adapter. `weft devices --networks` lists what weft finds",
        no_driver ? "Load its driver (" : "", no_driver ? a->driver : "", no_driver ? "); see `dmesg`. " : "", a->provider, a->from,
        a->provider);
}

static void check_adapters(struct doctor *d, const json_t *list, const char *failed)
{
    char line[512], vendor[64], device[64];
    bool seen[sizeof adapters / sizeof adapters[0]] = {false}; /* a host may have many adapters of a kind: report each kind once */
    const char *text = d->mac ? NULL : doctor_fact(d, DOCTOR_PCI);
    while (text && doctor_next_line(&text, line, sizeof line)) {
        doctor_word_of(line, "vendor", vendor);
        doctor_word_of(line, "device", device);
        for (size_t i = 0; i < sizeof adapters / sizeof adapters[0]; i++) {
            const struct adapter *a = &adapters[i];
            if (!seen[i] && strcmp(vendor, a->vendor) == 0 && strncmp(device, a->device, strlen(a->device)) == 0) {
                seen[i] = true;
                check_adapter(d, a, line, list, failed);
            }
        }
    }
}

/* Whether a device can be used for RDMA without libfabric. */
static bool has_rdma(const json_t *devices)
{
    size_t i;
    const json_t *device;
    json_array_foreach (devices, i, device)
        if (json_is_true(json_object_get(device, "usable")))
            return true;
    return false;
}

void doctor_check_networks(struct doctor *d)
{
    char failed[400], transport[64] = "";
    json_t *list = networks_read(d, failed, sizeof failed);
    doctor_value_of(doctor_fact(d, DOCTOR_LIMITS), "transport", transport, sizeof transport);
    /* Check the networks only if nodes use libfabric: WEFT_TRANSPORT is ofi, or it is not set and there are no RDMA devices. */
    if (list && (transport[0] ? strcmp(transport, "ofi") == 0 : !has_rdma(d->devices))) {
        const json_t *best = better_than_tcp(list);
        /* "clear": others could read the data, as with psm3 on Ethernet; such a provider does not count as better than TCP */
        d->by_libfabric = check_usable(d, list, failed) && check_settings(d, list) && json_is_false(json_object_get(best, "clear"));
        check_adapters(d, list, failed);
    }
    json_decref(list);
}
