/* SPDX-License-Identifier: MIT
 *
 * The fabric's file: its place, and how it is made and removed.
 *
 * The file gets its name when it is complete. Most of it is holes, and only used parts need memory.
 *
 * Bytes beyond the end of the file are used for locks: one byte for each process, locked while the process lives, and one for a process
 * that is joining. The kernel releases these locks when a process dies, and they work across namespaces.
 */
#include "shared.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int file_because(struct sv_why *why, int error, const char *format, const char *a, const char *b)
{
    if (why)
        snprintf(why->text, sizeof why->text, format, a, b);
    return error;
}

static uint64_t file_bytes(void)
{
    return SF_BYTES;
}

uint64_t sf_layout(void)
{
    const uint64_t sizes[] = {sizeof(struct sf_fabric),   sizeof(struct sv_profile),
                              sizeof(struct sv_topology), sizeof(struct sf_qp),
                              sizeof(struct sf_cq),       sizeof(struct sf_cqe),
                              sizeof(struct sf_send),     sizeof(struct sf_mr),
                              sizeof(struct sf_fault),    offsetof(struct sf_fabric, pages)};
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        h = (h ^ sizes[i]) * UINT64_C(0x100000001b3);
    return h;
}

bool sf_name_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n >= SV_NAME || name[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.", name[i]))
            return false;
    return true;
}

int sf_directory(char *path, size_t bytes, bool make, struct sv_why *why)
{
    const char *set = getenv("SOFTVERBS_DIR");
    int n = set && set[0] ? snprintf(path, bytes, "%s", set) : snprintf(path, bytes, "/dev/shm/softverbs-%u", (unsigned)geteuid());
    if (n < 0 || (size_t)n >= bytes)
        return file_because(why, -ENAMETOOLONG, "the directory of fabrics ($SOFTVERBS_DIR) has a name that is too long%s%s", "", "");
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
        return file_because(why, -errno,
                            "cannot make the directory of fabrics %s: %s. Set SOFTVERBS_DIR to a directory that you can write to", path,
                            strerror(errno));
    struct stat s;
    if (lstat(path, &s) != 0)
        return file_because(why, -errno, "there is no directory of fabrics at %s (%s): no fabric has been made yet", path, strerror(errno));
    if (!S_ISDIR(s.st_mode) || s.st_uid != geteuid())
        return file_because(why, -EACCES,
                            "%s does not belong to this user: fabrics are not shared between users. "
                            "Set SOFTVERBS_DIR to a directory of this user%s",
                            path, "");
    return 0;
}

static int file_path(char *path, size_t bytes, const char *name, bool make, struct sv_why *why)
{
    if (!sf_name_valid(name))
        return file_because(why, -EINVAL,
                            "'%s' cannot name a fabric: letters, digits, '-', '_' and '.', at most 31, not beginning with '.'%s", name, "");
    int r = sf_directory(path, bytes, make, why);
    if (r != 0)
        return r;
    size_t n = strlen(path);
    if (snprintf(path + n, bytes - n, "/%s", name) >= (int)(bytes - n))
        return file_because(why, -ENAMETOOLONG, "%s/%s: the name is too long", path, name);
    return 0;
}

static int file_create(const char *name, const struct sv_model *model, uint64_t seed, struct sv_why *why)
{
    char path[256], making[300];
    int r = file_path(path, sizeof path, name, true, why);
    if (r != 0)
        return r;
    /* make the file without a name if possible, so that a killed process leaves no file */
    snprintf(making, sizeof making, "%.*s", (int)(strrchr(path, '/') - path), path);
    int fd = open(making, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    bool nameless = fd >= 0;
    if (nameless) {
        snprintf(making, sizeof making, "/proc/self/fd/%d", fd);
    } else {
        snprintf(making, sizeof making, "%.*s/.%s.%ld", (int)(strrchr(path, '/') - path), path, name, (long)getpid());
        unlink(making);
        fd = open(making, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (fd < 0)
        return file_because(why, -errno, "cannot make a file for the fabric, %s: %s", making, strerror(errno));
    struct sf_fabric *f = MAP_FAILED;
    r = ftruncate(fd, (off_t)file_bytes()) == 0 ? -posix_fallocate(fd, 0, (off_t)offsetof(struct sf_fabric, processes)) : -errno;
    if (r == 0 && (f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        r = -errno;
    if (r != 0) {
        char reason[96];
        snprintf(reason, sizeof reason, "%s; it needs %zu KiB at first", strerror(-r), offsetof(struct sf_fabric, processes) >> 10);
        file_because(why, r,
                     "no room for fabric %s: %s and grows with use. Free space there, or set SOFTVERBS_DIR to a directory with more", path,
                     reason);
    } else {
        f->magic = SF_MAGIC;
        f->layout = sf_layout();
        f->bytes = file_bytes();
        f->seed = seed;
        f->created = (uint64_t)time(NULL);
        snprintf(f->name, sizeof f->name, "%s", name);
        f->model = *model;
        for (uint32_t d = 0; d < model->topology.device_count && d < SV_DEVICES; d++)
            f->devices[d].port_up = model->topology.devices[d].port_up;
        munmap(f, sizeof *f);
        r = linkat(AT_FDCWD, making, AT_FDCWD, path, nameless ? AT_SYMLINK_FOLLOW : 0) == 0 ? 0 : -errno;
        if (r != 0)
            file_because(why, r,
                         r == -EEXIST ? "there is a fabric already at %s%s: use another name, or remove it first with `softverbs down`"
                                      : "cannot make the fabric's file %s: %s",
                         path, r == -EEXIST ? "" : strerror(-r));
    }
    if (!nameless)
        unlink(making);
    close(fd);
    return r;
}

int sf_create(const char *name, const struct sv_model *model, uint64_t seed, struct sv_why *why)
{
    int r = -ENOENT;
    /* a process that removes the last fabric at this moment also removes the directory */
    for (int again = 0; again < 3 && r == -ENOENT; again++)
        r = file_create(name, model, seed, why);
    return r;
}

/* Removes the directory of fabrics when it is empty, unless the user has set SOFTVERBS_DIR. */
static void remove_directory(void)
{
    char path[256];
    const char *set = getenv("SOFTVERBS_DIR");
    if (!(set && set[0]) && sf_directory(path, sizeof path, false, NULL) == 0)
        rmdir(path); /* fails if the directory is not empty */
}

/* Checks the numbers that the library uses as indices without checking them itself. */
static bool model_sane(const struct sv_model *m)
{
    const struct sv_topology *t = &m->topology;
    if (t->host_count == 0 || t->host_count > SV_HOSTS || t->device_count > SV_DEVICES)
        return false;
    for (uint32_t h = 0; h < t->host_count; h++)
        if ((uint32_t)t->hosts[h].first_device + t->hosts[h].device_count > t->device_count)
            return false;
    for (uint32_t d = 0; d < t->device_count; d++)
        if (t->devices[d].gid_count > SV_GIDS || t->devices[d].host >= t->host_count || t->devices[d].cable >= (int32_t)t->device_count)
            return false;
    return m->profile.depth_step_count <= SV_STEPS;
}

static int file_protect(struct sf_fabric *f, int how)
{
    return mprotect(&f->model, offsetof(struct sf_fabric, devices) - offsetof(struct sf_fabric, model), how) ? -errno : 0;
}

int sf_set_cable(struct sf_fabric *f, uint32_t device, int32_t cable)
{
    struct sv_device_model *d = &f->model.topology.devices[device];
    int err = device >= f->model.topology.device_count || cable >= (int32_t)f->model.topology.device_count
                  ? -EINVAL
                  : file_protect(f, PROT_READ | PROT_WRITE);
    if (err)
        return err;
    /* relaxed, as in all readers: the ports are down, so nothing is sent */
    __atomic_store_n(&d->cable, cable, __ATOMIC_RELAXED);
    d->port_up = cable >= 0;
    return file_protect(f, PROT_READ);
}

/* ---- Processes of other PID namespaces -------------------------------------------------------------------------- */
static struct flock byte_of(uint32_t process, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(file_bytes() + process), .l_len = 1};
}

/* Locks the byte of a process. Byte 0 is locked while a process joins: if an entry is being filled in and byte 0 is not locked, the entry's
 * process is dead. The wait is limited, because a process may be stopped while it joins, and some file systems have no locks. */
static void lock_byte(const struct sf_view *v, uint32_t process)
{
    struct flock l = byte_of(process, F_WRLCK);
    for (int turn = 0; turn < 1000 && fcntl(v->fd, F_OFD_SETLK, &l) != 0 && (errno == EAGAIN || errno == EACCES || errno == EINTR); turn++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void unlock_joining(const struct sf_view *v)
{
    struct flock l = byte_of(0, F_UNLCK);
    fcntl(v->fd, F_OFD_SETLK, &l);
}

/* Marks the entries of other namespaces whose processes are dead. Returns the number + 1 of a living process of another namespace, or 0. */
static uint32_t find_stranger(struct sf_view *v, uint64_t space)
{
    struct sf_fabric *f = v->fabric;
    uint32_t found = 0;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the fabric is mapped here, else sf_attach() has returned an error */
    for (uint32_t p = 1; p <= f->process_top && p <= SF_PROCESSES; p++) {
        struct sf_process *e = &f->processes[p - 1];
        uint32_t owner = atomic_load_explicit(&e->owner, memory_order_acquire);
        uint64_t theirs = atomic_load_explicit(&e->space, memory_order_relaxed);
        if (owner == 0 || theirs == space || theirs == SF_SPACE_DEAD)
            continue;
        struct flock l = byte_of(p, F_WRLCK);
        if (fcntl(v->fd, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK) {
            found = p;
            continue;
        }
        atomic_store_explicit(&e->space, SF_SPACE_DEAD, memory_order_relaxed);
        /* release: a process that sees the entry in use also sees that its process is dead */
        atomic_compare_exchange_strong_explicit(&e->owner, &owner, 1, memory_order_release, memory_order_relaxed);
    }
    return found;
}

/* Whether /proc shows this process's namespace. Processes are woken through /proc/PID/fd, and the /proc of another namespace has other
 * numbers. */
static bool proc_is_ours(void)
{
    char text[32] = "";
    ssize_t n = readlink("/proc/self", text, sizeof text - 1);
    return n > 0 && strtol(text, NULL, 10) == getpid();
}

static int take_place(struct sf_view *v, uint16_t host, uint64_t space, uint64_t started, struct sv_why *why)
{
    struct sf_fabric *f = v->fabric;
    if (getrandom(&v->cookie, sizeof v->cookie, 0) != (ssize_t)sizeof v->cookie)
        v->cookie = sf_now() ^ (uint64_t)getpid() << 32;
    for (int again = 0; again < 2; again++) {
        for (uint32_t p = 0; p < SF_PROCESSES; p++) {
            uint32_t free = 0;
            int error = p < f->process_top ? 0 : sf_back(v, &f->processes[p], sizeof f->processes[p]);
            if (error)
                return file_because(why, error,
                                    "no room for one more process in fabric '%s': the file system of %s may be full; free space there",
                                    f->name, v->path);
            if (!atomic_compare_exchange_strong_explicit(&f->processes[p].owner, &free, SF_JOINING | (uint32_t)getpid(),
                                                         memory_order_acq_rel, memory_order_relaxed))
                continue;
            struct sf_process *e = &f->processes[p];
            lock_byte(v, p + 1); /* the kernel releases this lock when the process ends */
            atomic_store_explicit(&e->space, space, memory_order_relaxed);
            e->started = started;
            e->pid = getpid();
            atomic_store_explicit(&e->thread, e->pid, memory_order_relaxed);
            e->cookie = v->cookie;
            e->cookie_address = (uintptr_t)&v->cookie;
            e->host = host;
            memset(e->command, 0, sizeof e->command);
            int comm = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
            if (comm >= 0) {
                ssize_t n = read(comm, e->command, sizeof e->command - 1);
                e->command[n > 0 ? n - 1 : 0] = 0;
                close(comm);
            }
            uint32_t top = f->process_top;
            while (top < p + 1 && !atomic_compare_exchange_weak(&f->process_top, &top, p + 1))
                ;
            /* release: a process that sees the entry in use also sees its cookie */
            atomic_store_explicit(&e->owner, 1, memory_order_release);
            v->process = p + 1;
            return 0;
        }
        /* The table is full. Only a process with an entry can free objects. So this process takes the entry of a dead process, and then
         * frees that process's objects. */
        for (uint32_t p = 1; p <= SF_PROCESSES; p++) {
            uint32_t in_use = 1;
            if (sf_alive(f, p) || !atomic_compare_exchange_strong(&f->processes[p - 1].owner, &in_use, SF_JOINING | (uint32_t)getpid()))
                continue;
            v->process = p;
            sf_inherit(v);
            v->process = 0;
            break;
        }
    }
    return file_because(why, -EUSERS, "fabric '%s' already has 1024 processes, the limit: end some, or make another fabric%s", f->name, "");
}

static int file_join(struct sf_view *v, uint16_t host, uint64_t space, uint64_t started, struct sv_why *why)
{
    if (!proc_is_ours())
        return file_because(why, -EOPNOTSUPP,
                            "/proc is not mounted, or is another PID namespace's: processes could not find each other. "
                            "Mount it (unshare --mount-proc, or mount -t proc proc /proc)%s%s",
                            "", "");
    int r = 0;
    lock_byte(v, 0);
    if (find_stranger(v, space))
        r = file_because(why, -EXDEV,
                         "fabric '%s' is in use by a program in another PID namespace (inside or outside of a container): programs "
                         "that do not see each other's process numbers cannot share a fabric. Start all of them in one "
                         "container, or share its PID namespace, or name another fabric (--fabric)%s",
                         v->fabric->name, "");
    else
        r = take_place(v, host, space, started, why);
    unlock_joining(v);
    /* A program that this one has replaced (exec) has left an entry with this process number. Its cookie shows that it is dead. */
    if (r == 0)
        sf_reap_all(v);
    return r;
}

int sf_attach(struct sf_view *v, const char *name, bool member, uint16_t host, struct sv_why *why)
{
    memset(v, 0, sizeof *v);
    v->fd = -1;
    int r = file_path(v->path, sizeof v->path, name, false, why);
    if (r != 0)
        return r;
    v->fd = open(v->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (v->fd < 0)
        return errno == ENOENT
                   ? file_because(why, -ENOENT, "there is no fabric '%s' (%s): make it with `softverbs up`, or let `softverbs run` make it",
                                  name, v->path)
                   : file_because(why, -errno, "cannot open the fabric's file %s: %s", v->path, strerror(errno));
    struct stat s;
    struct sf_fabric *f = MAP_FAILED;
    uint64_t head[3], space, started;
    r = -EPROTO;
    if (fstat(v->fd, &s) != 0 || s.st_uid != geteuid() || pread(v->fd, head, sizeof head, 0) != (ssize_t)sizeof head ||
        head[0] != SF_MAGIC || head[1] != sf_layout() || head[2] != file_bytes() || (uint64_t)s.st_size != file_bytes()) {
        file_because(why, r, "%s is not a fabric of this version of softverbs: remove it (softverbs down --fabric %s), then `softverbs up`",
                     v->path, name);
        goto fail;
    }
    f = mmap(NULL, file_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, v->fd, 0);
    if (f == MAP_FAILED) {
        r = file_because(why, -errno, "cannot map %s: %s. It needs 4 GiB of address space (ulimit -v), though not of memory", v->path,
                         strerror(errno));
        goto fail;
    }
    madvise(f, file_bytes(), MADV_DONTFORK);
    v->fabric = f;
    if (!model_sane(&f->model) || (host >= f->model.topology.host_count && host != SF_NO_HOST)) {
        r = file_because(why, -EPROTO, "the fabric %s is damaged: remove it (softverbs down --fabric %s), then `softverbs up`", v->path,
                         name);
        goto fail;
    }
    /* from now on nothing in this process can change the model */
    file_protect(f, PROT_READ);
    if (atomic_load_explicit(&f->down, memory_order_acquire)) {
        r = file_because(why, -ENOENT, "fabric '%s' has been removed: make it again with `softverbs up`%s", name, "");
        goto fail;
    }
    sf_know_self(&space, &started);
    if (member && (r = file_join(v, host, space, started, why)) != 0)
        goto fail;
    return 0;
fail:
    if (f != MAP_FAILED)
        munmap(f, file_bytes());
    close(v->fd);
    v->fd = -1;
    v->fabric = NULL;
    return r;
}

void sf_detach(struct sf_view *v)
{
    if (!v->fabric)
        return;
    if (v->process)
        sf_leave(v);
    munmap(v->fabric, file_bytes());
    close(v->fd);
    v->fabric = NULL;
    v->process = 0;
    v->fd = -1;
}

bool sf_is_fabric(const char *name)
{
    char path[256];
    struct stat s;
    uint64_t magic = 0;
    int fd = file_path(path, sizeof path, name, false, NULL) == 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    bool is = fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() &&
              pread(fd, &magic, sizeof magic, 0) == (ssize_t)sizeof magic && (magic & SF_MAGIC_FAMILY) == (SF_MAGIC & SF_MAGIC_FAMILY);
    if (fd >= 0)
        close(fd);
    return is;
}

int sf_remove(const char *name, bool force, unsigned *live, struct sv_why *why)
{
    struct sf_view v;
    unsigned alive = 0;
    uint64_t space, started;
    int r = sf_attach(&v, name, false, 0, why);
    if (r == -EPROTO) { /* another build made the file, so no process of this build uses it */
        char path[256];
        r = file_path(path, sizeof path, name, false, why);
        if (r == 0 && !sf_is_fabric(name))
            return file_because(why, -EPROTO, "%s is not a fabric, and is left alone%s", path, "");
        if (r == 0 && unlink(path) != 0)
            r = file_because(why, -errno, "cannot remove %s: %s", path, strerror(errno));
        remove_directory();
        return r;
    }
    if (r != 0)
        return r;
    sf_know_self(&space, &started);
    lock_byte(&v, 0);
    find_stranger(&v, space);
    for (uint32_t p = 1; p <= v.fabric->process_top && p <= SF_PROCESSES; p++)
        alive += v.fabric->processes[p - 1].host != SF_NO_HOST && sf_alive(v.fabric, p);
    unlock_joining(&v);
    if (live)
        *live = alive;
    if (alive > 0 && !force) {
        sf_detach(&v);
        return file_because(why, -EBUSY, "fabric '%s' is in use%s", name, "");
    }
    atomic_store_explicit(&v.fabric->down, 1, memory_order_release);
    if (unlink(v.path) != 0)
        r = file_because(why, -errno, "cannot remove %s: %s", v.path, strerror(errno));
    sf_detach(&v);
    remove_directory();
    return r;
}
