/* SPDX-License-Identifier: MIT
 *
 * GPUs on PCI, from trees of sysfs as kernels show them: links, distances to RDMA devices, and why a GPU cannot be used.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/cuda_driver.h"
#include "gpu/pci.h"

static char root[200];

/* Makes the path of a file, and the folders above it. */
static void place(const char *path, char out[600])
{
    snprintf(out, 600, "%s/%s", root, path);
    for (char *c = out + strlen(root) + 1; (c = strchr(c, '/')); c++) {
        *c = '\0';
        mkdir(out, 0755);
        *c = '/';
    }
}

static void file(const char *path, const char *text)
{
    char at[600];
    place(path, at);
    FILE *f = fopen(at, "we");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void link_to(const char *path, const char *target)
{
    char at[600];
    place(path, at);
    assert_int_equal(symlink(target, at), 0);
}

/* Makes a device at `where` below sys/devices: a file for each "name=value". */
static void device(const char *where, const char *const *facts)
{
    char path[400], target[400];
    const char *address = strrchr(where, '/') + 1;
    for (; *facts; facts++) {
        const char *is = strchr(*facts, '=');
        snprintf(path, sizeof path, "sys/devices/%s/%.*s", where, (int)(is - *facts), *facts);
        if (strncmp(*facts, "driver=", 7) == 0) {
            snprintf(target, sizeof target, "../../../../bus/pci/drivers/%s", is + 1);
            link_to(path, target);
        } else {
            snprintf(target, sizeof target, "%s\n", is + 1);
            file(path, target);
        }
    }
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s", address);
    snprintf(target, sizeof target, "../../../devices/%s", where);
    link_to(path, target);
}

static void nic(const char *name, const char *where)
{
    char path[400], target[400];
    device(where, (const char *const[]){"class=0x020000", "vendor=0x15b3", "driver=mlx5_core", "numa_node=0", NULL});
    snprintf(path, sizeof path, "sys/devices/%s/infiniband/%s/node_guid", where, name);
    file(path, "0\n");
    snprintf(path, sizeof path, "sys/devices/%s/infiniband/%s/device", where, name);
    snprintf(target, sizeof target, "../../../%s", strrchr(where, '/') + 1);
    link_to(path, target);
    snprintf(path, sizeof path, "sys/class/infiniband/%s", name);
    snprintf(target, sizeof target, "../../devices/%s/infiniband/%s", where, name);
    link_to(path, target);
}

#define GPU(where, ...)    device(where, (const char *const[]){"class=0x030200", "vendor=0x10de", __VA_ARGS__, NULL})
#define LINK(speed, width) "current_link_speed=" speed " GT/s PCIe", "current_link_width=" width
#define MOST(speed, width) "max_link_speed=" speed " GT/s PCIe", "max_link_width=" width

static int fresh(void **state)
{
    (void)state;
    const char *dir = getenv("TMPDIR");
    snprintf(root, sizeof root, "%.150s/weft-pci-XXXXXX", dir && *dir ? dir : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int clear(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void test_links(void **state)
{
    struct pci_gpu all[8];
    (void)state;
    GPU("pci0000:c0/0000:c0:01.0/0000:c1:00.0", LINK("2.5", "16"), MOST("32.0", "16"), "driver=nvidia");
    GPU("pci0000:00/0000:00:07.0/0000:02:00.0/0000:03:00.0", LINK("16.0", "4"), MOST("64.0", "16"), "removable=removable");
    GPU("pci0000:00/0000:00:08.0/0000:04:00.0", "current_link_speed=Unknown", "current_link_width=0", MOST("16.0", "16"),
        "removable=fixed");
    device("pci0000:00/0000:00:09.0/0000:05:00.0",
           (const char *const[]){"class=0x030000", "vendor=0x1002", LINK("8.0", "255"), "driver=amdgpu", NULL});
    /* the display controller of the mainboard */
    device("pci0000:00/0000:00:0a.0/0000:06:00.0", (const char *const[]){"class=0x030000", "vendor=0x1a03", NULL});
    /* the GPU's sound device */
    device("pci0000:c0/0000:c0:01.0/0000:c1:00.1", (const char *const[]){"class=0x040300", "vendor=0x10de", NULL});
    assert_int_equal(gpu_pci_list(root, all, 8), 4);
    assert_string_equal(all[0].address, "0000:03:00.0");
    assert_true(all[0].external);
    assert_string_equal(all[0].driver, "");
    assert_int_equal(all[0].generation, 4);
    assert_int_equal(all[0].lanes, 4);
    assert_int_equal(all[0].generation_most, 6);
    assert_int_equal(all[0].lanes_most, 16);
    assert_string_equal(all[1].address, "0000:04:00.0");
    assert_false(all[1].external);
    assert_int_equal(all[1].generation, 0);
    assert_int_equal(all[1].lanes, 0);
    assert_int_equal(all[2].vendor, PCI_AMD);
    assert_int_equal(all[2].lanes, 0);
    assert_string_equal(all[3].driver, "nvidia");
    assert_int_equal(all[3].generation, 1);
    assert_int_equal(all[3].generation_most, 5);
    assert_int_equal(gpu_pci_list(root, all, 2), 2);
    assert_int_equal(gpu_pci_list("/nonexistent", all, 8), 0);
}

static void nearest(const char *address, const char *name, uint32_t wanted)
{
    char rdma[64];
    uint32_t distance;
    gpu_pci_nearest(root, address, rdma, &distance);
    assert_string_equal(rdma, name);
    assert_int_equal(distance, wanted);
}

static void test_distance(void **state)
{
    (void)state;
    GPU("pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0", "numa_node=0");
    GPU("pci0000:80/0000:80:01.0/0000:81:00.0", "numa_node=0");
    GPU("pci0000:c0/0000:c0:01.0/0000:c1:00.0", "numa_node=1");
    nearest("0000:19:00.0", "", WEFT_GPU_NO_RDMA);
    file("sys/devices/virtual/infiniband/rxe0/node_guid", "0\n"); /* a device on no bus */
    link_to("sys/class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0");
    nearest("0000:19:00.0", "", WEFT_GPU_NO_RDMA);
    nic("mlx5_9", "pci0000:16/0000:16:02.0/0000:20:00.0"); /* shares only the host bridge */
    nearest("0000:19:00.0", "mlx5_9", WEFT_GPU_SAME_ROOT);
    nic("mlx5_3", "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0/0000:1b:00.0/0000:1c:00.0");
    nearest("0000:19:00.0", "mlx5_3", WEFT_GPU_SAME_SWITCH);
    nic("mlx5_4", "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0"); /* fewer bridges away than the others */
    nic("mlx5_5", "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:03.0/0000:1d:00.0"); /* equally far: the first by name is chosen */
    nearest("0000:19:00.0", "mlx5_4", WEFT_GPU_SAME_SWITCH);
    nearest("0000:81:00.0", "mlx5_9", WEFT_GPU_SAME_NODE);
    nearest("0000:c1:00.0", "mlx5_9", WEFT_GPU_OTHER_NODE);
    nearest("0000:ff:00.0", "", WEFT_GPU_NO_RDMA);
}

#define THIS  "0000:03:00.0"
#define STAMP "4,1234,5678901,-;"

static void test_log(void **state)
{
    char said[PCI_SAID];
    (void)state;
    gpu_pci_log(root, THIS, said);
    assert_string_equal(said, "");
    file("dev/kmsg",
         STAMP "NVRM: loading NVIDIA UNIX Open Kernel Module  580.159  GSP\n"
               "6,1,1,-;pci 0000:03:00.0: BAR 1 failed\n" STAMP "NVRM: GPU 0000:17:00.0: RmInitAdapter failed! (0x26:0x56:1)\n" STAMP
               "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n");
    gpu_pci_log(root, THIS, said);
    assert_string_equal(said, "loading NVIDIA UNIX Open Kernel Module  580.159  GSP"); /* this line names no device */
    file("dev/kmsg", STAMP "NVRM: GPU 0000:03:00.0: RmInitAdapter failed! (0x62:0x40:2142)\n" STAMP
                           "NVRM: GPU 0000:03:00.0: rm_init_adapter failed, device minor number 0\n");
    gpu_pci_log(root, THIS, said);
    assert_string_equal(said, "GPU 0000:03:00.0: rm_init_adapter failed, device minor number 0");
    file("dev/kmsg", STAMP "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM\n" STAMP
                           "NVRM: GPU 0000:03:00.0: RmInitAdapter failed! (0x62:0x40:2142)\n");
    gpu_pci_log(root, THIS, said);
    assert_string_equal(said, "RmInitAdapter: Cannot initialize GSP firmware RM");
}

/* The sentences for a GPU with these properties. */
static weft_gpu_info explained(const char *const *facts, const char *said, const char *cuda, const char *visible)
{
    weft_gpu_info info = {0};
    struct pci_gpu g;
    device("pci0000:00/0000:00:07.0/0000:03:00.0", facts);
    gpu_pci_read(root, THIS, &g);
    gpu_pci_explain(&g, said, cuda, visible, &info);
    clear(NULL);
    assert_int_equal(mkdir(root, 0755), 0);
    return info;
}
#define FACTS(...) ((const char *const[]){"class=0x030200", __VA_ARGS__, NULL})
#define EXTERNAL   "vendor=0x10de", LINK("16.0", "4"), MOST("32.0", "16"), "removable=removable"

static void test_why(void **state)
{
    static const char no_driver[] = "there is no CUDA driver (libcuda.so.1)";
    char said[PCI_SAID] = "";
    (void)state;
    /* An external GPU whose link is up and whose firmware does not start. */
    gpu_pci_log_line("NVRM: GPU 0000:03:00.0: _kgspBootGspRm: GSP boot failed, RPC 4097 result 101", THIS, said);
    weft_gpu_info i = explained(FACTS(EXTERNAL, "driver=nvidia"), said, "CUDA's driver knows of no GPU", NULL);
    assert_non_null(strstr(i.why, "external; its link is up (PCIe 4 x4), but its firmware refuses to start: "));
    assert_non_null(strstr(i.why, "RPC 4097 result 101"));
    assert_non_null(strstr(i.remedy, "over Thunderbolt"));
    i = explained(FACTS("vendor=0x10de", LINK("16.0", "16"), "driver=nvidia"), said, "", NULL);
    assert_non_null(strstr(i.why, "the driver is bound to the GPU, but the GPU's firmware does not start: "));
    i = explained(FACTS("vendor=0x10de", "driver=nvidia"), "Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.", "", NULL);
    assert_non_null(strstr(i.why, "no longer answers"));
    i = explained(FACTS("vendor=0x10de", "driver=nvidia"), "BAR1 is 0M @ 0x0 (PCI:0000:03:00.0) is invalid", "", NULL);
    assert_non_null(strstr(i.remedy, "Above 4G"));
    i = explained(FACTS(EXTERNAL, "driver=nvidia"), "", no_driver, NULL);
    assert_string_equal(i.why, no_driver);
    i = explained(FACTS(EXTERNAL, "driver=nvidia"), "", "", "1");
    assert_string_equal(i.why, "it is hidden from this process: CUDA_VISIBLE_DEVICES is \"1\"");
    i = explained(FACTS(EXTERNAL, "driver=nvidia"), "", "", NULL);
    assert_non_null(strstr(i.why, "CUDA does not offer it"));
    i = explained(FACTS(EXTERNAL), "", no_driver, NULL);
    assert_string_equal(i.why, "no driver is bound to it; it is external, and its link is up");
    i = explained(FACTS("vendor=0x10de", "current_link_width=0", MOST("16.0", "16"), "removable=removable"), "", no_driver, NULL);
    assert_string_equal(i.why, "its PCIe link is down; it is external");
    i = explained(FACTS(EXTERNAL, "driver=nouveau"), "", no_driver, NULL);
    assert_string_equal(i.why, "its driver is nouveau, which has no CUDA");
    i = explained(FACTS(EXTERNAL, "driver=vfio-pci"), "", no_driver, NULL);
    assert_non_null(strstr(i.why, "virtual machine"));
    i = explained(FACTS("vendor=0x1002", LINK("16.0", "16"), "driver=amdgpu"), "", no_driver, NULL);
    assert_non_null(strstr(i.why, "AMD"));
}

static void cuda_says(struct cuda_facts f, const char *wanted)
{
    char why[160];
    gpu_cuda_explain(&f, why, sizeof why);
    if (!strstr(why, wanted))
        fail_msg("'%s' is not in '%s'", wanted, why);
}

static void test_cuda(void **state)
{
    struct cuda_facts f;
    (void)state;
    gpu_cuda_facts(root, &f);
    assert_false(f.module);
    assert_int_equal(f.control, ENOENT);
    file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159  Tue Jan  1\nGCC version: 12.2\n");
    file("dev/nvidiactl", "");
    gpu_cuda_facts(root, &f);
    assert_true(f.module);
    assert_int_equal(f.control, 0);
    assert_string_equal(f.version, "580.159");
    cuda_says((struct cuda_facts){.code = 100, .control = ENOENT}, "the kernel has no NVIDIA module");
    cuda_says((struct cuda_facts){.code = 100, .module = true, .control = EACCES, .visible = "0"}, "no permission: this user may not open");
    cuda_says((struct cuda_facts){.code = 100, .module = true, .visible = ""}, "CUDA_VISIBLE_DEVICES is \"\"");
    cuda_says((struct cuda_facts){.code = 100, .module = true, .control = ENOENT}, "/dev/nvidiactl is missing");
    cuda_says((struct cuda_facts){.code = 100, .module = true, .version = "580.1"}, "although the kernel's module 580.1 is loaded: dmesg");
    cuda_says((struct cuda_facts){.code = 803, .module = true, .version = "580.1"}, "module 580.1 have different versions");
    cuda_says((struct cuda_facts){.code = 802, .module = true}, "nvidia-fabricmanager");
    cuda_says((struct cuda_facts){.code = 999, .module = true}, "does not start (CUDA 999)");
}

static void test_processors(void **state)
{
    uint64_t set[BASE_CPU_WORDS];
    (void)state;
    GPU("pci0000:16/0000:16:01.0/0000:17:00.0", "local_cpulist=0-3,62-65,1022-5000");
    assert_true(gpu_pci_processors(root, "0000:17:00.0", set));
    assert_int_equal(set[0], UINT64_C(3) << 62 | 15);
    assert_int_equal(set[1], 3);
    assert_int_equal(set[15], UINT64_C(3) << 62);
    GPU("pci0000:16/0000:16:01.0/0000:18:00.0", "local_cpulist=");
    assert_false(gpu_pci_processors(root, "0000:18:00.0", set));
    assert_false(gpu_pci_processors(root, "0000:19:00.0", set));
    /* A thread is bound to the given processors only if it may use some of them, and then only to those. */
    uint64_t all[BASE_CPU_WORDS], now[BASE_CPU_WORDS], none[BASE_CPU_WORDS] = {0};
    base_cpu_set(all);
    base_cpu_stay(none);
    base_cpu_set(now);
    assert_memory_equal(now, all, sizeof all);
#if defined(__linux__)
    uint32_t word = 0;
    while (!all[word])
        word++;
    uint64_t one[BASE_CPU_WORDS] = {0};
    one[word] = all[word] & -all[word];
    one[15] |= UINT64_C(1) << 63;
    base_cpu_stay(one);
    base_cpu_set(now);
    assert_int_equal(now[word], all[word] & -all[word]);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_links, fresh, clear), cmocka_unit_test_setup_teardown(test_distance, fresh, clear),
        cmocka_unit_test_setup_teardown(test_log, fresh, clear),   cmocka_unit_test_setup_teardown(test_why, fresh, clear),
        cmocka_unit_test_setup_teardown(test_cuda, fresh, clear),  cmocka_unit_test_setup_teardown(test_processors, fresh, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
