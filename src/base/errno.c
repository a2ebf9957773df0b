/* SPDX-License-Identifier: MIT
 *
 * Errno numbers differ between systems. Messages between nodes, GPU kernels and records use Linux's numbers. This file converts between
 * them and this system's numbers.
 */
#include "base/base.h"

#include <errno.h>
#include <limits.h>

/* Linux's errno numbers. If this system uses one number for two names, the first of them in this list is used. */
/* clang-format would indent each line more than the line before. */
/* clang-format off */
#define ERRORS(X) \
    X(EPERM, 1) X(ENOENT, 2) X(ESRCH, 3) X(EINTR, 4) X(EIO, 5) X(ENXIO, 6) X(E2BIG, 7) X(ENOEXEC, 8) X(EBADF, 9) \
    X(ECHILD, 10) X(EAGAIN, 11) X(ENOMEM, 12) X(EACCES, 13) X(EFAULT, 14) X(ENOTBLK, 15) X(EBUSY, 16) X(EEXIST, 17) \
    X(EXDEV, 18) X(ENODEV, 19) X(ENOTDIR, 20) X(EISDIR, 21) X(EINVAL, 22) X(ENFILE, 23) X(EMFILE, 24) X(ENOTTY, 25) \
    X(ETXTBSY, 26) X(EFBIG, 27) X(ENOSPC, 28) X(ESPIPE, 29) X(EROFS, 30) X(EMLINK, 31) X(EPIPE, 32) X(EDOM, 33) \
    X(ERANGE, 34) X(EDEADLK, 35) X(ENAMETOOLONG, 36) X(ENOLCK, 37) X(ENOSYS, 38) X(ENOTEMPTY, 39) X(ELOOP, 40) \
    X(ENOMSG, 42) X(EIDRM, 43) X(ENOSTR, 60) X(ENODATA, 61) X(ETIME, 62) X(ENOSR, 63) X(EREMOTE, 66) X(ENOLINK, 67) \
    X(EPROTO, 71) X(EMULTIHOP, 72) X(EBADMSG, 74) X(EOVERFLOW, 75) X(EILSEQ, 84) X(EUSERS, 87) X(ENOTSOCK, 88) \
    X(EDESTADDRREQ, 89) X(EMSGSIZE, 90) X(EPROTOTYPE, 91) X(ENOPROTOOPT, 92) X(EPROTONOSUPPORT, 93) \
    X(ESOCKTNOSUPPORT, 94) X(EOPNOTSUPP, 95) X(ENOTSUP, 95) X(EPFNOSUPPORT, 96) X(EAFNOSUPPORT, 97) X(EADDRINUSE, 98) \
    X(EADDRNOTAVAIL, 99) X(ENETDOWN, 100) X(ENETUNREACH, 101) X(ENETRESET, 102) X(ECONNABORTED, 103) \
    X(ECONNRESET, 104) X(ENOBUFS, 105) X(EISCONN, 106) X(ENOTCONN, 107) X(ESHUTDOWN, 108) X(ETOOMANYREFS, 109) \
    X(ETIMEDOUT, 110) X(ECONNREFUSED, 111) X(EHOSTDOWN, 112) X(EHOSTUNREACH, 113) X(EALREADY, 114) X(EINPROGRESS, 115) \
    X(ESTALE, 116) X(EDQUOT, 122) X(ECANCELED, 125) X(EOWNERDEAD, 130) X(ENOTRECOVERABLE, 131)
/* clang-format on */

#define ROW(name, number) {number, name},
const struct base_number base_errnos[] = {ERRORS(ROW)};
const size_t base_errno_count = sizeof base_errnos / sizeof base_errnos[0];

#if defined(__linux__)
#define SAME(name, number) _Static_assert(name == number, #name " has another number");
ERRORS(SAME)
#endif

int base_number_change(const struct base_number *all, size_t count, int number, bool out)
{
    for (size_t i = 0; i < count; i++)
        if (number == (out ? all[i].own : all[i].linux_number))
            return out ? all[i].linux_number : all[i].own;
    return -1;
}

int base_status_change(const struct base_number *all, size_t count, int status, bool out)
{
    if (status >= 0)
        return status;
    int number = status < -INT_MAX ? -1 : base_number_change(all, count, -status, out);
    return number > 0 ? -number : base_status_change(all, count, out ? -EIO : -5, out); /* 5: Linux's EIO */
}
