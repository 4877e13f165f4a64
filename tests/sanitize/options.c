/*
 * How a sanitized program ends, whoever starts it with whatever environment: at once, by a signal. What it has not given back when it
 * ends is the kernel's to take.
 */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:quarantine_size_mb=32"; }
const char *__ubsan_default_options(void) { return "print_stacktrace=1:abort_on_error=1"; }
