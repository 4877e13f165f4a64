#pragma once
#include <stdint.h>

enum { ACCOUNT_MAX = 32 }; /* MySQL's limit, which is the stricter one */

/* The number of databases that a server of the MySQL protocol lists to `account`, which has no password. It is 0 when the
 * answer is incomplete at `limit` (CLOCK_MONOTONIC), is an error, or lacks `information_schema`, which every server has. */
int list_databases(int fd, const char *account, int64_t limit);
/* Ends the session as a client does, so that the server does not note an aborted connection. */
void end_session(int fd);
