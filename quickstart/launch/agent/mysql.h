#pragma once
#include <stdint.h>

enum { ACCOUNT_MAX = 32 }; /* what MySQL allows, the stricter one */

/* How many databases a server of the MySQL protocol lists to `account`, which has no password; 0 when the answer is
 * not all there by `limit` (CLOCK_MONOTONIC), is an error, or does not have `information_schema`, which every one has. */
int list_databases(int fd, const char *account, int64_t limit);
/* Ends the session as a client does: the server notes no aborted connection. */
void end_session(int fd);
