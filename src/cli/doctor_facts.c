/* SPDX-License-Identifier: MIT
 *
 * Collects the facts for weft doctor from this host, and loads them from and saves them to a directory.
 */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/doctor.h"
#include "cluster/cluster.h"

#define FACT_MAX (1u << 20) /* maximum number of bytes of one fact */

/* Read a stream to its end, as text without zero bytes. Returns NULL on failure, with errno set: EFBIG if the stream has more than FACT_MAX
 * bytes. */
static char *facts_read_all(FILE *from)
{
    char *text = malloc(FACT_MAX + 1);
    size_t n = text ? fread(text, 1, FACT_MAX, from) : 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    int error = !text ? ENOMEM : ferror(from) ? errno : n == FACT_MAX && fgetc(from) != EOF ? EFBIG : 0;
    if (error) {
        free(text);
        errno = error;
        return NULL;
    }
    text[n] = '\0';
    char *exact = realloc(text, n + 1);
    return exact ? exact : text;
}

/* A text that is written through a stream. */
struct sheet {
    FILE *to;
    char *text;
    size_t len;
};

static bool sheet_open(struct sheet *s)
{
    s->text = NULL;
    s->to = open_memstream(&s->text, &s->len);
    return s->to != NULL;
}

static char *sheet_text(struct sheet *s)
{
    return fclose(s->to) == 0 ? s->text : NULL;
}

/* --- this host, any system --- */
static char *facts_library(void)
{
    const struct verbs_library *l;
    char line[1200];
    if (verbs_load(&l))
        snprintf(line, sizeof line, "missing: %s\n", base_error());
    else
        snprintf(line, sizeof line, "found %s\n", l->path);
    return strdup(line);
}

/* The device that settings name as the first rail: the first one of WEFT_RAILS, or WEFT_DEVICE. */
static void limits_device(const struct cluster_setting_row *rows, int count, FILE *to)
{
    const char *name = "";
    for (int i = 0; i < count; i++)
        if ((strcmp(rows[i].name, "rails") == 0 && isalpha((unsigned char)rows[i].value[0])) ||
            (strcmp(rows[i].name, "device") == 0 && !name[0]))
            name = rows[i].value;
    if (name[0])
        fprintf(to, "device: %.*s\n", (int)strcspn(name, ","), name);
}

static char *limits(void)
{
    struct cluster_setting_row rows[CLUSTER_SETTINGS_MAX];
    struct rlimit lock;
    struct sheet s;
    uint64_t pool;
    if (!sheet_open(&s))
        return NULL;
    if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0) {
        if (lock.rlim_cur == RLIM_INFINITY)
            fputs("memlock: unlimited\n", s.to);
        else
            fprintf(s.to, "memlock: %llu\n", (unsigned long long)lock.rlim_cur);
    }
    int count = cluster_settings_list(rows, CLUSTER_SETTINGS_MAX, NULL, false);
    for (int i = 0; i < count; i++) {
        if (strcmp(rows[i].name, "pool") == 0 && base_parse_bytes(rows[i].value, &pool) == 0)
            fprintf(s.to, "pool: %llu\n", (unsigned long long)pool);
        if (strcmp(rows[i].name, "transport") == 0 && rows[i].value[0])
            fprintf(s.to, "transport: %s\n", rows[i].value);
        if (strcmp(rows[i].name, "ofi_provider") == 0 && rows[i].value[0])
            fprintf(s.to, "provider: %s\n", rows[i].value);
        if (strcmp(rows[i].name, "ofi_interface") == 0 && rows[i].value[0])
            fprintf(s.to, "interface: %s\n", rows[i].value);
        if (strcmp(rows[i].name, "gpu_rdma") == 0 && strcmp(rows[i].value, "no") == 0)
            fprintf(s.to, "gpu_rdma: no\n");
    }
    if (count > 0)
        limits_device(rows, count, s.to);
    fprintf(s.to, "privileged: %s\n", geteuid() == 0 ? "yes" : "no");
    return sheet_text(&s);
}

/* Allocate a protection domain and a queue pair, and free both. This finds devices of which all such objects are in use. */
static void allocate(const char *name, FILE *to)
{
    struct verbs_device *d;
    struct verbs_qp q;
    if (verbs_device_open(&d, name, -1))
        return;
    int rc = verbs_device_use(d);
    fprintf(to, "%s domain %d\n", name, -rc);
    struct ibv_cq *cq = rc ? NULL : d->lib->create_cq(d->context, 16, NULL, NULL, 0);
    if (cq) {
        struct verbs_qp_options o = {
            .type = d->traits.rc ? IBV_QPT_RC : IBV_QPT_UC, .send_cq = cq, .recv_cq = cq, .send_depth = 16, .recv_depth = 16, .sge = 1};
        rc = verbs_qp_create(&q, d, &o);
        fprintf(to, "%s queue_pair %d\n", name, -rc);
        if (rc == 0)
            verbs_qp_destroy(&q);
        d->lib->destroy_cq(cq);
    }
    verbs_device_close(d);
}

static void devices(struct doctor_facts *f)
{
    const struct verbs_library *l;
    struct verbs_device *all;
    uint32_t count;
    struct sheet s;
    int wanted = -1;
    cli_gid_index(&wanted);
    if (verbs_load(&l))
        return; /* the fact DOCTOR_LIBRARY reports this */
    if (verbs_devices(&all, &count, wanted)) {
        json_t *failed = json_pack("{s:s}", "error", base_error());
        f->text[DOCTOR_DEVICES] = json_dumps(failed, JSON_INDENT(1));
        json_decref(failed);
        return;
    }
    if (!sheet_open(&s)) {
        verbs_devices_close(all, count);
        return;
    }
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_array_append_new(list, cli_device_json(&all[i]));
        if (all[i].usable == 0)
            allocate(all[i].name, s.to);
    }
    verbs_devices_close(all, count);
    f->text[DOCTOR_DEVICES] = json_dumps(list, JSON_INDENT(1));
    f->text[DOCTOR_ALLOCATION] = sheet_text(&s);
    json_decref(list);
}

static void networks(struct doctor_facts *f)
{
    json_t *list = cli_networks_json();
    f->text[DOCTOR_NETWORKS] = json_dumps(list, JSON_INDENT(1));
    json_decref(list);
}

static void gpus(struct doctor_facts *f)
{
    json_t *list = cli_gpus_json();
    f->text[DOCTOR_GPUS] = json_dumps(list, JSON_INDENT(1));
    json_decref(list);
}

#if defined(__APPLE__)
static char *output_of(const char *command)
{
    FILE *p = popen(command, "r");
    char *text = p ? facts_read_all(p) : NULL;
    if (p && pclose(p)) {
        free(text);
        text = NULL;
    }
    return text;
}

static void system_facts(struct doctor_facts *f)
{
    f->text[DOCTOR_SYSTEM] = output_of("/usr/bin/sw_vers 2>/dev/null");
    f->text[DOCTOR_RDMA_CTL] = output_of("rdma_ctl status 2>&1");
    f->text[DOCTOR_THUNDERBOLT] = output_of("/usr/sbin/system_profiler SPThunderboltDataType 2>/dev/null");
    f->text[DOCTOR_INTERFACES] = output_of("/sbin/ifconfig -a 2>/dev/null");
    f->text[DOCTOR_PCI] = output_of("/usr/sbin/system_profiler SPPCIDataType 2>/dev/null");
}
#else
/* Read the first line of a file under /sys, with '_' in place of blanks. Returns "-" if there is no such line. */
static const char *sys_word(const char *dir, const char *name, const char *file, char out[64])
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", dir, name, file);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(out, 64, f))
        snprintf(out, 64, "-");
    if (f)
        fclose(f);
    out[strcspn(out, "\n")] = '\0';
    for (char *c = out; *c; c++)
        if (*c == ' ')
            *c = '_'; /* "16.0 GT/s PCIe" */
    return out;
}

static const char *driver_of(const char *dir, const char *name, char out[64])
{
    char path[512], target[512];
    snprintf(path, sizeof path, "%s/%s/driver", dir, name);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(target, '/');
    snprintf(out, 64, "%.63s", slash ? slash + 1 : "-");
    return out;
}

/* List the PCI devices of the classes network controller (0x02), display controller (0x03) and processing accelerator (0x12). */
static char *pci(void)
{
    static const char dir[] = "/sys/bus/pci/devices";
    struct sheet s;
    DIR *d = opendir(dir);
    if (!d || !sheet_open(&s)) {
        if (d)
            closedir(d);
        return NULL;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char class[64], vendor[64], device[64], width[64], most[64], speed[64], driver[64];
        if (e->d_name[0] == '.')
            continue;
        sys_word(dir, e->d_name, "class", class);
        if (strncmp(class, "0x02", 4) != 0 && strncmp(class, "0x03", 4) != 0 && strncmp(class, "0x12", 4) != 0)
            continue;
        fprintf(s.to, "%s class=%s vendor=%s device=%s driver=%s width=%s max_width=%s speed=%s\n", e->d_name, class,
                sys_word(dir, e->d_name, "vendor", vendor), sys_word(dir, e->d_name, "device", device), driver_of(dir, e->d_name, driver),
                sys_word(dir, e->d_name, "current_link_width", width), sys_word(dir, e->d_name, "max_link_width", most),
                sys_word(dir, e->d_name, "current_link_speed", speed));
    }
    closedir(d);
    return sheet_text(&s);
}

static char *uverbs(void)
{
    struct sheet s;
    DIR *d = opendir("/dev/infiniband");
    if (!d || !sheet_open(&s)) {
        if (d)
            closedir(d);
        return d ? NULL : strdup("");
    }
    for (struct dirent *e; (e = readdir(d));) {
        char path[300];
        snprintf(path, sizeof path, "/dev/infiniband/%s", e->d_name);
        if (strncmp(e->d_name, "uverbs", 6) == 0)
            fprintf(s.to, "%s %s\n", path, access(path, R_OK | W_OK) == 0 ? "yes" : "no");
    }
    closedir(d);
    return sheet_text(&s);
}

static void system_facts(struct doctor_facts *f)
{
    struct utsname u;
    char line[256];
    if (uname(&u) == 0) {
        snprintf(line, sizeof line, "%.60s %.120s\n", u.sysname, u.release);
        f->text[DOCTOR_SYSTEM] = strdup(line);
    }
    f->text[DOCTOR_UVERBS] = uverbs();
    f->text[DOCTOR_PCI] = pci();
}
#endif

int doctor_collect(struct doctor_facts *f)
{
    memset(f, 0, sizeof *f);
    f->text[DOCTOR_LIBRARY] = facts_library();
    f->text[DOCTOR_LIMITS] = limits();
    devices(f);
    gpus(f);
    networks(f);
    system_facts(f);
    return f->text[DOCTOR_LIBRARY] ? 0 : base_fail(-ENOMEM, "no memory for the facts about this host" BASE_MEMORY_HINT);
}

/* --- a directory --- */
int doctor_load(struct doctor_facts *f, const char *directory)
{
    char path[4200];
    struct stat st;
    unsigned found = 0;
    memset(f, 0, sizeof *f);
    if (stat(directory, &st) || !S_ISDIR(st.st_mode))
        return base_fail(-ENOTDIR, "--facts %s: this is not a directory: name one that `weft doctor --save` has written", directory);
    for (int i = 0; i < DOCTOR_FACTS; i++) {
        snprintf(path, sizeof path, "%.4000s/%s", directory, doctor_file((enum doctor_fact)i));
        FILE *from = fopen(path, "re");
        if (!from && errno == ENOENT)
            continue;
        if (from)
            f->text[i] = facts_read_all(from);
        int error = errno;
        if (from)
            fclose(from);
        if (!f->text[i]) {
            doctor_forget(f);
            return base_fail(-EINVAL, "%s cannot be read: %s", path, error == EFBIG ? "more than 1 MiB" : base_strerror(error));
        }
        found++;
    }
    return found ? 0
                 : base_fail(-ENOENT,
                             "--facts %s: the directory has no facts in it (system.txt, library.txt, ...): name one that `weft doctor "
                             "--save` has written",
                             directory);
}

int doctor_save(const struct doctor_facts *f, const char *directory)
{
    char path[4200];
    if (mkdir(directory, 0755) && errno != EEXIST)
        return base_fail(-errno, "cannot make directory %s for the facts: %s", directory, base_strerror(errno));
    for (int i = 0; i < DOCTOR_FACTS; i++) {
        if (!f->text[i])
            continue;
        snprintf(path, sizeof path, "%.4000s/%s", directory, doctor_file((enum doctor_fact)i));
        FILE *to = fopen(path, "we");
        bool good = to && fputs(f->text[i], to) >= 0;
        if (to && fclose(to))
            good = false;
        if (!good)
            return base_fail(-errno, "cannot write %s: %s", path, base_strerror(errno));
    }
    return 0;
}

void doctor_forget(struct doctor_facts *f)
{
    for (int i = 0; i < DOCTOR_FACTS; i++)
        free(f->text[i]);
    memset(f, 0, sizeof *f);
}
