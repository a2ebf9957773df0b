/* SPDX-License-Identifier: MIT
 *
 * GPUs on PCI: what sysfs and the kernel's log report about them.
 */
#include "gpu/pci.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PCI_ROOT_MAX 400

/* --- one device --- */

/* The first line of one of the device's files in sysfs; "" if there is none. */
static const char *pci_text(const char *root, const char *address, const char *file, char out[64])
{
    char path[PCI_ROOT_MAX + 128];
    snprintf(path, sizeof path, "%.*s/sys/bus/pci/devices/%.15s/%s", PCI_ROOT_MAX, root, address, file);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(out, 64, f))
        out[0] = '\0';
    if (f)
        fclose(f);
    out[strcspn(out, "\n")] = '\0';
    return out;
}

static uint32_t pci_number(const char *root, const char *address, const char *file, int base)
{
    char text[64];
    return (uint32_t)strtoul(pci_text(root, address, file, text), NULL, base);
}

/* Reads a speed such as "16.0 GT/s PCIe". 2.5, 5, 8, 16, 32 and 64 billion transfers a second are PCIe generations 1 to 6. Returns 0 if it
   is unknown, for example while the link is down. */
static uint32_t pci_generation(const char *root, const char *address, const char *file)
{
    static const double speeds[] = {2.5, 5, 8, 16, 32, 64};
    char text[64];
    double speed = strtod(pci_text(root, address, file, text), NULL);
    uint32_t g = 0;
    while (g < sizeof speeds / sizeof *speeds && speed >= speeds[g])
        g++;
    return g;
}

/* Reads the number of lanes. The kernel reports an unknown width as 255. */
static uint32_t pci_lanes(const char *root, const char *address, const char *file)
{
    uint32_t lanes = pci_number(root, address, file, 10);
    return lanes <= 32 ? lanes : 0;
}

void gpu_pci_read(const char *root, const char *address, struct pci_gpu *out)
{
    char path[PCI_ROOT_MAX + 128], target[PATH_MAX], text[64];
    *out = (struct pci_gpu){0};
    snprintf(out->address, sizeof out->address, "%s", address);
    out->vendor = pci_number(root, address, "vendor", 16);
    out->generation = pci_generation(root, address, "current_link_speed");
    out->generation_most = pci_generation(root, address, "max_link_speed");
    out->lanes = pci_lanes(root, address, "current_link_width");
    out->lanes_most = pci_lanes(root, address, "max_link_width");
    out->external = strcmp(pci_text(root, address, "removable", text), "removable") == 0;
    snprintf(path, sizeof path, "%.*s/sys/bus/pci/devices/%.15s/driver", PCI_ROOT_MAX, root, address);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(target, '/');
    snprintf(out->driver, sizeof out->driver, "%.31s", slash ? slash + 1 : "");
}

static int by_address(const void *a, const void *b)
{
    return strcmp(((const struct pci_gpu *)a)->address, ((const struct pci_gpu *)b)->address);
}

/* Whether the device is a display controller or a processing accelerator. The sound device that many GPUs also have is neither. */
static bool pci_is_gpu(const char *root, const char *address)
{
    uint32_t class = pci_number(root, address, "class", 16) >> 16, vendor = pci_number(root, address, "vendor", 16);
    return (class == 0x03 || class == 0x12) && (vendor == PCI_NVIDIA || vendor == PCI_AMD);
}

uint32_t gpu_pci_list(const char *root, struct pci_gpu *out, uint32_t room)
{
    char path[PCI_ROOT_MAX + 128];
    uint32_t n = 0;
    snprintf(path, sizeof path, "%.*s/sys/bus/pci/devices", PCI_ROOT_MAX, root);
    DIR *d = opendir(path);
    for (struct dirent *e; d && n < room && (e = readdir(d));)
        if (e->d_name[0] != '.' && strlen(e->d_name) < sizeof out->address && pci_is_gpu(root, e->d_name))
            gpu_pci_read(root, e->d_name, &out[n++]);
    if (d)
        closedir(d);
    qsort(out, n, sizeof *out, by_address);
    return n;
}

/* --- the tree --- */

/* The path of a device: the bridges above it and the device, such as "pci0000:16/0000:16:01.0/0000:17:00.0". Returns false if it is not on
 * a PCI bus. */
static bool pci_path(const char *root, const char *link, char out[PATH_MAX])
{
    char path[PCI_ROOT_MAX + 256], real[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/%s", PCI_ROOT_MAX, root, link);
    const char *at = realpath(path, real) ? strstr(real, "/pci") : NULL;
    if (at)
        snprintf(out, PATH_MAX, "%s", at + 1);
    return at;
}

/* The number of names that two paths have in common at their beginning; `*apart` is the number of names after those, in both paths. */
static uint32_t pci_common(const char *a, const char *b, uint32_t *apart)
{
    uint32_t common = 0;
    for (;;) {
        size_t n = strcspn(a, "/"), m = strcspn(b, "/");
        if (n == 0 || n != m || strncmp(a, b, n) != 0)
            break;
        common++;
        a += n + (a[n] == '/');
        b += m + (b[m] == '/');
    }
    *apart = 0;
    for (int side = 0; side < 2; side++)
        for (const char *rest = side ? b : a; *rest; rest += strcspn(rest, "/"), rest += *rest == '/')
            ++*apart;
    return common;
}

static int pci_numa(const char *root, const char *directory)
{
    char path[PCI_ROOT_MAX + 300], text[16] = "";
    snprintf(path, sizeof path, "%.*s/%s/numa_node", PCI_ROOT_MAX, root, directory);
    FILE *f = fopen(path, "re");
    bool read = f && fgets(text, sizeof text, f);
    if (f)
        fclose(f);
    return read ? atoi(text) : -1;
}

void gpu_pci_nearest(const char *root, const char *address, char rdma[64], uint32_t *distance)
{
    char path[PCI_ROOT_MAX + 128], gpu_link[128], gpu[PATH_MAX], link[300], nic[PATH_MAX];
    uint32_t best = UINT32_MAX;
    rdma[0] = '\0';
    *distance = WEFT_GPU_NO_RDMA;
    snprintf(gpu_link, sizeof gpu_link, "sys/bus/pci/devices/%.15s", address);
    snprintf(path, sizeof path, "%.*s/sys/class/infiniband", PCI_ROOT_MAX, root);
    DIR *d = pci_path(root, gpu_link, gpu) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(link, sizeof link, "sys/class/infiniband/%.200s/device", e->d_name);
        if (e->d_name[0] == '.' || strlen(e->d_name) >= 64 || !pci_path(root, link, nic))
            continue;
        uint32_t apart, common = pci_common(gpu, nic, &apart);
        int here = pci_numa(root, gpu_link), there = pci_numa(root, link);
        uint32_t far = common > 1                   ? WEFT_GPU_SAME_SWITCH
                       : common == 1                ? WEFT_GPU_SAME_ROOT
                       : here >= 0 && here == there ? WEFT_GPU_SAME_NODE
                                                    : WEFT_GPU_OTHER_NODE;
        uint32_t rank = far << 16 | (apart < 0xffff ? apart : 0xffff);
        if (rank > best || (rank == best && strcmp(e->d_name, rdma) > 0))
            continue;
        best = rank;
        *distance = far;
        snprintf(rdma, 64, "%.63s", e->d_name);
    }
    if (d)
        closedir(d);
}

bool gpu_pci_processors(const char *root, const char *address, uint64_t set[BASE_CPU_WORDS])
{
    char path[PCI_ROOT_MAX + 128], text[4096] = "";
    snprintf(path, sizeof path, "%.*s/sys/bus/pci/devices/%.15s/local_cpulist", PCI_ROOT_MAX, root, address);
    FILE *f = fopen(path, "re");
    bool read = f && fgets(text, sizeof text, f), some = false;
    if (f)
        fclose(f);
    memset(set, 0, BASE_CPU_WORDS * sizeof *set);
    /* A list such as "0-15,32-47". */
    for (const char *at = text; read && *at >= '0' && *at <= '9';) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < BASE_CPU_WORDS * 64u; i++) {
            set[i / 64] |= UINT64_C(1) << (i % 64);
            some = true;
        }
        at = *end == ',' ? end + 1 : "";
    }
    return some;
}

void gpu_pci_tell(const char *root, const struct pci_gpu *g, weft_gpu_info *out)
{
    snprintf(out->pci, sizeof out->pci, "%s", g->address);
    out->pcie_generation = g->generation;
    out->pcie_lanes = g->lanes;
    out->pcie_generation_most = g->generation_most;
    out->pcie_lanes_most = g->lanes_most;
    out->external = g->external;
    gpu_pci_nearest(root, g->address, out->rdma, &out->rdma_distance);
}

/* --- the kernel's log --- */

/* Whether a line of the log names the device: "0000:17:00.0" or, in Xid messages, "PCI:0000:17:00". `*other` is set if the line names
 * another device. */
static bool pci_named(const char *line, const char *address, bool *other)
{
    char slot[16];
    snprintf(slot, sizeof slot, "%.*s", (int)strcspn(address, "."), address);
    bool named = slot[0] && strstr(line, slot);
    const char *gpu = strstr(line, "GPU 0"), *pci = strstr(line, "PCI:");
    *other = !named && (gpu || pci);
    return named;
}

void gpu_pci_log_line(const char *line, const char *address, char said[PCI_SAID])
{
    static const char *const failures[] = {"failed", "Xid", "GSP", "invalid", "fallen off", "not supported"};
    const char *at = strstr(line, "NVRM: ");
    bool other, about = false;
    if (!at)
        return;
    at += strlen("NVRM: ");
    bool named = pci_named(at, address, &other);
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        about |= strstr(at, failures[i]) != NULL;
    if (other || !about || (!named && !strstr(at, "GSP") && !strstr(at, "RmInitAdapter")))
        return;
    /* keep the line about the firmware, because the driver's last lines only repeat that the start failed */
    if (strstr(said, "GSP") && !strstr(at, "GSP") && !strstr(at, "Xid"))
        return;
    size_t n = 0;
    for (; at[n] && at[n] != '\n' && n < PCI_SAID - 1; n++)
        said[n] = at[n] >= ' ' && at[n] <= '~' ? at[n] : ' ';
    said[n] = '\0';
}

void gpu_pci_log(const char *root, const char *address, char said[PCI_SAID])
{
    char path[PCI_ROOT_MAX + 16], line[8192];
    said[0] = '\0';
    snprintf(path, sizeof path, "%.*s/dev/kmsg", PCI_ROOT_MAX, root);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (!f) {
        if (fd >= 0)
            close(fd);
        return;
    }
    setvbuf(f, NULL, _IOFBF, 16384); /* one read returns one whole record of the log, or fails if the buffer is too small */
    for (;;) {
        if (fgets(line, sizeof line, f)) {
            gpu_pci_log_line(line, address, said);
        } else if (ferror(f) && errno == EPIPE) { /* records were overwritten: read on from the oldest one */
            clearerr(f);
        } else {
            break;
        }
    }
    fclose(f);
}

/* --- why a GPU is not usable --- */

#define SAY(out, ...) snprintf(out, sizeof(out), __VA_ARGS__)

static void explain_nvidia(const struct pci_gpu *g, const char *said, const char *cuda, const char *visible, weft_gpu_info *out)
{
    bool firmware = strstr(said, "GSP") || strstr(said, "RmInitAdapter") || strstr(said, "rm_init_adapter");
    if (strstr(said, "fallen off")) {
        SAY(out->why, "it no longer answers on PCIe: %s", said);
        SAY(out->remedy, "check its cable and power; only a restart of this machine, or of its enclosure, brings it back");
    } else if (strstr(said, "invalid") && strstr(said, "BAR")) {
        SAY(out->why, "the machine's firmware has assigned no PCI addresses to the GPU's memory: %s", said);
        SAY(out->remedy, "switch on \"Above 4G decoding\" in the firmware's settings, or start Linux with pci=realloc");
    } else if (firmware && g->external) {
        SAY(out->why, "external; its link is up (PCIe %u x%u), but its firmware refuses to start: %s", g->generation, g->lanes, said);
        SAY(out->remedy,
            "NVIDIA's newest GPUs are known to fail over Thunderbolt: try a newer driver, or put the GPU into a slot of a host");
    } else if (firmware) {
        SAY(out->why, "the driver is bound to the GPU, but the GPU's firmware does not start: %s", said);
        SAY(out->remedy, "restart this machine; if that does not help, try another version of the driver");
    } else if (cuda[0]) {
        SAY(out->why, "%s", cuda);
    } else if (visible) {
        SAY(out->why, "it is hidden from this process: CUDA_VISIBLE_DEVICES is \"%.60s\"", visible);
        SAY(out->remedy, "unset CUDA_VISIBLE_DEVICES, or name this GPU in it");
    } else {
        SAY(out->why, "the kernel's driver is bound to it, but CUDA does not offer it%s%s", said[0] ? ": " : "", said);
        SAY(out->remedy, said[0] ? "restart this machine" : "dmesg may have the reason (NVRM); in a container, give it all GPUs");
    }
}

void gpu_pci_explain(const struct pci_gpu *g, const char *said, const char *cuda, const char *visible, weft_gpu_info *out)
{
    if (g->vendor == PCI_AMD) {
        SAY(out->why, "weft has no back end for AMD's GPUs");
    } else if (g->lanes == 0 && g->lanes_most) {
        SAY(out->why, "its PCIe link is down%s", g->external ? "; it is external" : "");
        SAY(out->remedy, g->external ? "check the enclosure's power and cable, and that the Thunderbolt device is authorised (boltctl)"
                                     : "check that the GPU is firmly in its slot and has power");
    } else if (!g->driver[0]) {
        SAY(out->why, "no driver is bound to it%s", g->external ? "; it is external, and its link is up" : "");
        SAY(out->remedy, "load NVIDIA's driver (modprobe nvidia); dmesg says why that fails");
    } else if (strcmp(g->driver, "vfio-pci") == 0) {
        SAY(out->why, "it belongs to a virtual machine: its driver is vfio-pci");
        SAY(out->remedy, "use it in that virtual machine, or bind it to the driver nvidia");
    } else if (strcmp(g->driver, "nvidia") != 0) {
        SAY(out->why, "its driver is %s, which has no CUDA", g->driver);
        SAY(out->remedy, "install NVIDIA's driver");
    } else {
        explain_nvidia(g, said, cuda, visible, out);
    }
}
