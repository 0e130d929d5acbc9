// A wall clock that a test sets: preloaded into a server, it is as many nanoseconds ahead of the machine's as the file says that
// SERVER_WALL names, a 64-bit integer that may change at any time. The steady clock is the machine's.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *ahead_ns;

__attribute__((constructor)) static void open_wall(void) {
  const char *path = getenv("SERVER_WALL");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0) abort();
  void *page = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) abort();
  close(file);
  ahead_ns = page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int failed = (int)syscall(SYS_clock_gettime, clock, at);
  if (!failed && ahead_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    long long ns = at->tv_sec * 1000000000LL + at->tv_nsec + *ahead_ns;
    at->tv_sec = ns / 1000000000LL;
    at->tv_nsec = ns % 1000000000LL;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
