/* SPDX-License-Identifier: MIT
 *
 * Where this program is, and what belongs to it.
 */
#ifndef WEFT_CLI_SELF_H
#define WEFT_CLI_SELF_H

#include <limits.h>
#include <stddef.h>

/* The path of another program of this installation. `place`: its path, relative to the directory of this process's file. -EPERM: another
 * user could have put this file there. Other errors: it cannot be found. */
int self_beside(const char *place, char path[PATH_MAX]);
/* Path of the command `weft`, on other hosts, too. Where there is the small command (front.c), that one's path. */
const char *self_path(char *buf, size_t len);

#endif
