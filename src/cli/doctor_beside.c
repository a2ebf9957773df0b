/* SPDX-License-Identifier: MIT
 *
 * Checks of weft doctor that are not about RDMA devices: the bridge over Thunderbolt ports, a setting that leaves the devices unused, the
 * limit of locked memory, GPUs on PCIe.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/doctor_find.h"

static bool is_rdma_interface(const struct doctor *d, const char *interface)
{
    size_t i;
    const json_t *device;
    json_array_foreach (d->devices, i, device)
        if (strcmp(doctor_text_of(device, "interface"), interface) == 0)
            return true;
    return false;
}

static void report_bridge(struct doctor *d, const char *bridge, const char *members, bool ours)
{
    struct doctor_finding *f = doctor_add(d, "bridge", BRIDGE, false);
    SAY(f->what, "The Thunderbolt bridge (%.30s) is active", bridge);
    SAY(f->seen, "%.30s is active with members %.300s%s", bridge, members, ours ? ", which are ports of RDMA devices" : "");
    SAY(f->remedy,
        "If the cables form a loop, the bridge floods them. Run sudo ifconfig %.30s down (lasts until the next restart), or make "
        "\"Thunderbolt Bridge\" inactive in System Settings, Network. Then give each port an address of its own",
        bridge);
}

void doctor_check_bridge(struct doctor *d)
{
    const char *text = doctor_fact(d, DOCTOR_INTERFACES);
    char bridge[64] = "", members[300] = "", line[512];
    bool up = false, ours = false;
    /* The block of an interface starts with a line that is not indented, as in "bridge0: flags=8863<UP,...". */
    while (text && *text) {
        bool head = *text != ' ' && *text != '\t' && *text != '\n';
        doctor_next_line(&text, line, sizeof line);
        if (head) {
            snprintf(bridge, sizeof bridge, "%.*s", strncmp(line, "bridge", 6) == 0 ? (int)strcspn(line, ":") : 0, line);
            up = strstr(line, "<UP") || strstr(line, ",UP,");
            members[0] = '\0';
            ours = false;
        } else if (bridge[0] && strncmp(line, "member: ", 8) == 0) {
            char name[32];
            size_t n = strlen(members);
            snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 8, " "), line + 8);
            snprintf(members + n, sizeof members - n, "%s%s", n ? ", " : "", name);
            ours |= is_rdma_interface(d, name);
        } else if (bridge[0] && up && members[0] && strcmp(line, "status: active") == 0) {
            report_bridge(d, bridge, members, ours);
            bridge[0] = '\0';
        }
    }
}

/* Report that WEFT_TRANSPORT leaves the RDMA devices unused. Other causes of slow links depend on both nodes: fab_connect() warns of such
 * causes, and `weft topo` shows them. */
void doctor_check_slow_path(struct doctor *d)
{
    char transport[64];
    if (d->usable == 0 || !doctor_value_of(doctor_fact(d, DOCTOR_LIMITS), "transport", transport, sizeof transport) ||
        strcmp(transport, "ofi") != 0)
        return;
    struct doctor_finding *f = doctor_add(d, "slow-path", SLOW_PATH, false);
    SAY(f->what, "nodes that are started here use TCP, which is slower than the RDMA devices of this host, because WEFT_TRANSPORT is ofi");
    SAY(f->seen, "WEFT_TRANSPORT is ofi; %u RDMA device%s can be used", d->usable, d->usable == 1 ? "" : "s");
    SAY(f->remedy, "Unset WEFT_TRANSPORT: then weft uses RDMA between nodes that both have it, and TCP to the others. `weft topo` shows "
                   "which nodes use what");
}

void doctor_check_memlock(struct doctor *d)
{
    char lock[64], pool[64], who[16] = "no", a[32], b[32];
    const char *text = doctor_fact(d, DOCTOR_LIMITS);
    if (d->mac || !d->devices || json_array_size(d->devices) == 0 || !doctor_value_of(text, "memlock", lock, sizeof lock) ||
        strcmp(lock, "unlimited") == 0)
        return;
    if (doctor_value_of(text, "privileged", who, sizeof who) && strcmp(who, "yes") == 0)
        return;
    if (!doctor_is_number(lock))
        return; /* check_lines() has reported the invalid line */
    uint64_t limit = strtoull(lock, NULL, 10);
    uint64_t wanted = doctor_value_of(text, "pool", pool, sizeof pool) ? strtoull(pool, NULL, 10) : UINT64_C(256) << 20;
    if (limit >= wanted)
        return;
    struct doctor_finding *f = doctor_add(d, "memlock", MEMLOCK, true);
    SAY(f->what, "This user may lock less memory than a pool needs");
    SAY(f->seen, "limit %s (ulimit -l), pool %s (WEFT_POOL); memory that is registered with a device is locked",
        base_format_bytes(limit, a, sizeof a), base_format_bytes(wanted, b, sizeof b));
    SAY(f->remedy,
        "Write `* - memlock unlimited` to /etc/security/limits.conf, and log in again. For a service, set LimitMEMLOCK=infinity. "
        "For a container, use --ulimit memlock=-1");
}

static void report_gpu(struct doctor *d, const char *name, const char *width, const char *speed, const char *why)
{
    struct doctor_finding *f = doctor_add(d, "gpu", GPU, false);
    SAY(f->what, "There is a PCIe GPU that cannot be used");
    SAY(f->seen, "%.100s: link x%.10s at %.30s; %.200s", name, width, speed, why);
    if (d->mac)
        SAY(f->remedy,
            "macOS has no driver for it. Although the link is up, the GPU's firmware does not start over Thunderbolt, as is known "
            "of NVIDIA GPUs. Use it in a Linux host of the cluster");
    else
        SAY(f->remedy, "Install or load its driver (nvidia, amdgpu). A GPU that is bound to vfio-pci belongs to a virtual machine");
}

static void check_linux_gpu(struct doctor *d, const char *text)
{
    char line[512], class[64], vendor[64], driver[64], width[64], speed[64], why[128];
    while (doctor_next_line(&text, line, sizeof line)) {
        doctor_word_of(line, "class", class);
        if (strncmp(class, "0x02", 4) == 0) /* a network controller */
            continue;
        doctor_word_of(line, "vendor", vendor);
        doctor_word_of(line, "driver", driver);
        if (strcmp(vendor, "0x10de") != 0 && strcmp(vendor, "0x1002") != 0)
            continue;
        if (strcmp(driver, "nvidia") == 0 || strcmp(driver, "amdgpu") == 0)
            continue;
        doctor_word_of(line, "width", width);
        doctor_word_of(line, "speed", speed);
        for (char *c = speed; *c; c++)
            *c = *c == '_' ? ' ' : *c;
        snprintf(why, sizeof why, strcmp(driver, "-") == 0 ? "it has no driver" : "its driver is %.60s", driver);
        line[strcspn(line, " ")] = '\0';
        report_gpu(d, line, width, speed, why);
    }
}

static void check_mac_gpu(struct doctor *d, const char *text)
{
    char line[512], name[128] = "", width[32] = "?", speed[32] = "?";
    bool gpu = false, no_driver = false, end = false;
    /* The text consists of blocks: a title that ends with a colon, then "Key: value" lines. */
    while (!end) {
        end = !doctor_next_line(&text, line, sizeof line);
        size_t n = end ? 0 : strlen(line);
        bool title = n > 1 && line[n - 1] == ':';
        if ((title || end) && gpu && no_driver)
            report_gpu(d, name, width[0] == 'x' ? width + 1 : width, speed, "no driver is installed, or the driver does not start");
        if (title) {
            snprintf(name, sizeof name, "%.*s", (int)(n - 1 < 127 ? n - 1 : 127), line);
            snprintf(width, sizeof width, "?");
            snprintf(speed, sizeof speed, "?");
            gpu = no_driver = false;
        } else if (!end) {
            gpu |= strncmp(line, "Type: ", 6) == 0 && (strstr(line, "VGA") || strstr(line, "Display") || strstr(line, "3D"));
            no_driver |= strcmp(line, "Driver Installed: No") == 0 || strcmp(line, "Vendor ID: 0x10de") == 0;
            if (strncmp(line, "Link Width: ", 12) == 0)
                snprintf(width, sizeof width, "%.31s", line + 12);
            if (strncmp(line, "Link Speed: ", 12) == 0)
                snprintf(speed, sizeof speed, "%.31s", line + 12);
        }
    }
}

void doctor_check_gpu(struct doctor *d)
{
    const char *text = doctor_fact(d, DOCTOR_PCI);
    if (text)
        (d->mac ? check_mac_gpu : check_linux_gpu)(d, text);
}
